"""One model after the other, every item read and decoded anew for each: slow and obviously right.

In:  a Job
Out: a record of every model, told as soon as it is there
Nothing here is shared between models; `together` must give the same scores.
"""

from modelhound.errors import RequestError, StoreError, explain_error
from modelhound.features import arrange, extract_features, load_network, suitable_batch
from modelhound.measuring.scoring import Job, Seen, make_record, score_best_layer
from modelhound.meter import Meter
from modelhound.models import ModelRef
from modelhound.records import Failure, ModelMeasured, Progress

__all__ = ["measure_plainly"]


def measure_plainly(job: Job) -> None:
    """Measure every model; one that fails is told as a Failure and the others go on."""
    for done, (model, stamp) in enumerate(job.models.items()):
        job.watch(Progress(task="models", done=done, total=len(job.models), detail=str(model)))
        meter = Meter(job.device)
        try:
            record = _measure(job, model, stamp, meter)
        except (RequestError, StoreError):
            raise  # not this model's fault: data that changed or cannot be read, a disk that is full
        except Exception as error:  # whatever a stranger's model raises, the others go on
            job.tell(Failure(model=str(model), phase=meter.current_phase, error=explain_error(error)))
        else:
            job.tell(record)
    job.watch(Progress(task="models", done=len(job.models), total=len(job.models)))


def _measure(job: Job, model: ModelRef, stamp: str, meter: Meter) -> ModelMeasured:
    """One model from its weight file to its scores."""
    settings, dataset = job.settings, job.dataset
    network = load_network(model, settings, seed=settings.seed, meter=meter)
    with meter.phase("weights to device"):
        arrange(network, meter.device)
    extracted = extract_features(
        network,
        dataset,
        device=meter.device,
        batch=settings.batch or suitable_batch(network.preprocessing, meter.device),
        workers=settings.workers,
        prefetch=job.prefetch,
        pin=job.pin,
        meter=meter,
        classify="leep" in job.scorers,
        watch=job.watch,
    )
    seen = Seen(
        model=model,
        stamp=stamp,
        form=network.preprocessing,
        num_parameters=network.num_parameters,
        num_features=extracted.layers[-1].features.shape[1],
        num_layers=len(extracted.layers),
        num_truncated=extracted.num_truncated,
    )
    with meter.phase("score"):  # what no scorer can take is told as the engine tells it
        scores, layer = score_best_layer(
            extracted.layers, job.scorers, seed=settings.seed, timed=lambda name: meter.phase("score")
        )
    return make_record(
        seen,
        dataset,
        scores,
        layer,
        phases=meter.samples,
        wall_seconds=meter.wall_seconds,
        peak_memory_bytes=meter.peak_memory_bytes,
    )
