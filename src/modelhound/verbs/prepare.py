"""`prepare`: decode a data set once, so that every later search only has to copy.

In:  PrepareSettings
Out: a PrepareResult, and a folder that is a data set by itself: `hound search OUT`
One variant is written for every distinct resize and crop among the models asked for; these models then see the very pixels
that they would see of the original images.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.compat import load_libraries, wait_asleep
from modelhound.data import Dataset, Preprocessing, check_there, modality_of, open_asked
from modelhound.data.dataset import glance
from modelhound.data.preparing import check_folder, find_damaged, find_finished, prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.data.sources.prepared import Manifest
from modelhound.errors import RequestError
from modelhound.models import ModelRef, find_models, source_of
from modelhound.records import ItemSkipped, Progress, Watch, silent, to_document
from modelhound.settings import PrepareSettings
from modelhound.settings.checks import make_settings, name_all

__all__ = ["PrepareResult", "VariantMade", "prepare", "run_prepare"]

_DEFAULT_SIZE = 224


class VariantMade(msgspec.Struct, frozen=True, kw_only=True):
    """One way to resize and crop, and whom it serves."""

    name: str
    input_size: tuple[int, int]
    num_bytes: int
    models: tuple[str, ...]
    """Those of the models asked for that it is exact for."""


class PrepareResult(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the folder now."""

    out: Path
    data: str
    num_items: int
    num_classes: int
    num_bytes: int
    variants: tuple[VariantMade, ...]
    skipped: tuple[ItemSkipped, ...]
    was_finished: bool
    """Whether an earlier start had done it all."""
    mended: tuple[str, ...] = ()
    """Files that held other bytes than an earlier start had written, and were made again."""

    def to_json(self) -> dict[str, Any]:
        """The document that `hound prepare --json` prints."""
        document: dict[str, Any] = to_document(self)
        return document


def prepare(
    data: str, out: str | Path, *, models: str | Sequence[str] = (), watch: Watch = silent, **options: Any
) -> PrepareResult:
    """Decode `data` once into the folder `out`; `options` are those of `hound prepare`, the fields of PrepareSettings."""
    settings = make_settings(PrepareSettings, "prepare", str(data), Path(out), models=name_all(models), **options)
    return run_prepare(settings, watch=watch)


def run_prepare(settings: PrepareSettings, *, watch: Watch = silent) -> PrepareResult:
    """Do what `settings` ask for."""
    wait_asleep()  # before anything below loads torch
    check_folder(settings.out)
    check_there(settings.data)
    served = _find_variants(settings, watch)
    seen = glance(settings)
    finished = find_finished(settings.out, seen, tuple(served))
    damaged = find_damaged(settings.out, watch=watch)
    if finished is not None and not damaged:
        return _result(settings.out, finished, served, was_finished=True)
    dataset = open_asked(settings, watch=watch)
    _check_images(dataset)
    manifest = prepare_items(dataset, settings.out, tuple(served), glance=seen, damaged=damaged, watch=watch)
    return _result(settings.out, manifest, served, was_finished=False, mended=tuple(map(str, damaged)))


def _find_variants(settings: PrepareSettings, watch: Watch) -> dict[Variant, list[str]]:
    """Every distinct variant, with the models it is for."""
    if not settings.models:
        return {Variant.square(settings.size or _DEFAULT_SIZE): []}
    models = find_models(settings.models, watch=watch)
    load_libraries(watch)
    served: dict[Variant, list[str]] = {}
    for done, model in enumerate(models):
        watch(Progress(task="models", done=done, total=len(models), detail=str(model)))
        served.setdefault(Variant.of(_preprocessing_of(model)), []).append(str(model))
    watch(Progress(task="models", done=len(models), total=len(models)))
    return served


def _preprocessing_of(model: ModelRef) -> Preprocessing:
    """How the model wants its images. Its weights are not needed for that, so nothing is fetched."""
    import torch

    with torch.random.fork_rng(devices=[]):  # random weights shall not change anybody's random numbers
        form = source_of(model).build(model.name, None).preprocessing
    if not isinstance(form, Preprocessing):
        what = "it reads texts" if modality_of(form) == "text" else "it brings a transform of its own"
        raise RequestError(
            f"cannot prepare for {model}: expected a model that says how images are to be resized and cropped, but {what}; "
            "leave it out"
        )
    return form


def _check_images(dataset: Dataset) -> None:
    if dataset.modality != "image":
        raise RequestError(
            f"cannot prepare {dataset.name!r}: expected images, but these are texts, which need no preparing; "
            "give them to `hound search` as they are"
        )


def _result(
    out: Path,
    manifest: Manifest,
    served: dict[Variant, list[str]],
    *,
    was_finished: bool,
    mended: tuple[str, ...] = (),
) -> PrepareResult:
    num_items = len(manifest.item_names)
    made = tuple(
        VariantMade(
            name=stored.variant.name,
            input_size=stored.variant.input_size,
            num_bytes=num_items * stored.variant.item_bytes,
            models=tuple(served.get(stored.variant, ())),
        )
        for stored in manifest.variants
    )
    return PrepareResult(
        out=out,
        data=manifest.data,
        num_items=num_items,
        num_classes=len(manifest.class_names),
        num_bytes=sum(variant.num_bytes for variant in made),
        variants=made,
        skipped=manifest.skipped,
        was_finished=was_finished,
        mended=mended,
    )
