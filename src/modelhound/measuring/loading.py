"""What `hound loader` found, taken over by a search.

In:  a Job whose settings leave the batch size or the number of workers open
Out: the same Job with what the file holds that was given, or what is remembered of such data on this machine; what that was
Nothing here measures, and no score depends on it.
"""

import dataclasses

from modelhound.data.recommended import find_loader
from modelhound.measuring.scoring import Job
from modelhound.records import LoaderUsed

__all__ = ["use_recommended"]


def use_recommended(job: Job) -> tuple[Job, LoaderUsed | None]:
    """The job as it should be done, and what was taken over, if anything."""
    settings = job.settings
    if settings.loader is None and settings.memory is not None:
        return job, None  # what was found was found without a limit
    found = find_loader(
        settings.loader,
        job.dataset,
        device=job.device,
        plain=settings.plain,
        batch=settings.batch,
        workers=settings.workers,
    )
    if found is None:
        return job, None
    loader, used = found
    taken = dataclasses.replace(
        settings,
        batch=settings.batch if used.batch is None else used.batch,
        workers=settings.workers if used.workers is None else used.workers,
        loader=None,  # it is used up
    )
    return (
        dataclasses.replace(
            job,
            settings=taken,
            prefetch=job.prefetch if used.prefetch is None else used.prefetch,
            pin=loader.pin if settings.plain and job.device != "cpu" else job.pin,
        ),
        used,
    )
