"""What `benchmarks/engine.py` runs in processes of their own: one contestant, or the measurements that the floor rests on.

In:  the models and items of a pool, the device
Out: seconds, memory, bytes and scores, as JSON
Nothing here knows the other contestants. Imports are not timed, everything after them is.
"""

import contextlib
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modelhound.launch.arithmetic import try_bf16
from modelhound.meter import Meter, count_cores, disk_bytes_read, resolve_device

__all__ = ["contest", "contest_ranker", "exhaustive_scores", "explain", "measure_floor"]

_SEARCHES: dict[str, dict[str, Any]] = {
    "sharing": {"precision": "fp32", "exhaustive": True, "scorers": "sgd_probe"},
    "exhaustive": {"exhaustive": True},
    "layermean": {"layers": "mean"},
    "half": {"precision": "bf16"},
}
"""What contestants ask of a search beside the default."""
_SAMPLED_BATCHES = 6
_READ_BYTES = 1 << 24


def contest(
    contestant: str, models: list[str], data: str, device: str, num_items: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Seconds from the first look at the data to the ranking; for the plain loop also the scores that a ranking rests on."""
    device = _warm_up(device, data)
    if contestant == "half":
        try_bf16()  # which a search does beside its imports
    before, base_bytes = disk_bytes_read() or 0, _resident_bytes(device)
    made: dict[str, Any] = {"dropped": 0, "phases": {}, "scores": {}}
    distinct = contestant not in ("plain", "halving")
    with _counting_weights(distinct=distinct) as count, _watching_memory(device) as own_bytes:
        meter = Meter(device)
        if contestant == "plain":
            found = run_plain(models, data, device)
            made["scores"] = found.scores
        elif contestant == "halving":
            made["scores"] = run_halving(models, data, device, num_items)
        else:
            made |= _search(models, data, device, {**_SEARCHES.get(contestant, {}), **options})
        made["seconds"], made["peak_bytes"] = meter.wall_seconds, _peak_bytes(meter)
        made["own_bytes"] = own_bytes()
    if contestant == "plain":
        made["ridge"] = found.rank_by_ridge()  # after the clock: the loop itself has one scorer
    made |= {"base_bytes": base_bytes, "read_bytes": count(), "disk_bytes": (disk_bytes_read() or 0) - before}
    return made


def _warm_up(device: str, data: str) -> str:
    """Import what a search over these items imports, and wake the device."""
    import torch

    import modelhound
    import modelhound.measuring
    import modelhound.verbs.search  # noqa: F401
    from modelhound.compat import import_timm, import_transformers

    import_timm()
    if data.endswith(".csv"):
        import_transformers()
    device = resolve_device(device)
    if device != "cpu":
        torch.zeros(1, device=device)
    return device


_WATCHER = """
import os, re, sys, time
own, most = re.compile(rb"RssAnon:\\s*(\\d+)"), 0
status = os.open(f"/proc/{sys.argv[1]}/status", os.O_RDONLY)
first = None
os.set_blocking(0, False)
while True:
    held = 1024 * int(own.search(os.pread(status, 4096, 0))[1])
    if first is None:
        first = held
        print(flush=True)
    most = max(most, held)
    try:
        if os.read(0, 1) is not None:
            break
    except BlockingIOError:
        pass
    time.sleep(0.004)
print(most - first, flush=True)
"""
"""Looks at another process every 4 ms: what it holds of its own, not of files, above what it held first."""


@contextlib.contextmanager
def _watching_memory(device: str) -> Iterator[Any]:
    """The most memory that this process came to hold beside what it had and what lies in files; 0 on a device."""
    if device != "cpu" or not Path("/proc/self/status").exists():
        yield lambda: 0
        return
    command = [sys.executable, "-S", "-c", _WATCHER, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()  # it has looked once

        def end() -> int:
            answer, _ = watcher.communicate("\n")
            return int(answer)

        try:
            yield end
        finally:
            if watcher.returncode is None:
                watcher.kill()


def _resident_bytes(device: str) -> int:
    """What the process holds before it begins; on a device nothing."""
    import psutil

    return int(psutil.Process().memory_info().rss) if device == "cpu" else 0


def _peak_bytes(meter: Meter) -> int:
    """Most memory held. What getrusage tells of a process includes its parent, from before it became another program."""
    status = Path("/proc/self/status")
    if meter.device != "cpu" or not status.exists():
        return meter.peak_memory_bytes
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


@contextlib.contextmanager
def _counting_weights(*, distinct: bool) -> Iterator[Any]:
    """Counts bytes of weight files that were opened; `distinct` counts a file once however often it is opened, since what
    opens it twice reads it once (hashing brings it into memory)."""
    from modelhound.models.local import LocalSource

    ordinary, opened = LocalSource.read_weights, []

    def noting(source: LocalSource, name: str) -> Any:
        opened.append(name)
        return ordinary(source, name)

    LocalSource.read_weights = noting  # type: ignore[method-assign]
    try:
        yield lambda: sum(
            (Path(name) / "model.safetensors").stat().st_size for name in (set(opened) if distinct else opened)
        )
    finally:
        LocalSource.read_weights = ordinary  # type: ignore[method-assign]


class _Plain:
    """What the plain loop has found."""

    def __init__(self) -> None:
        self.scores: dict[str, float] = {}
        self.features: dict[str, Any] = {}

    def rank_by_ridge(self) -> dict[str, float]:
        """The scores that the ranking of `hound search --plain` rests on."""
        from modelhound.scores import score

        return {
            model: score(features, ["ridge"], seed=0).values["ridge"].value for model, features in self.features.items()
        }


def run_plain(models: Sequence[str], data: str, device: str, num_items: int | None = None) -> _Plain:
    """The loop of the research: every model by itself, fp32, batch 128, an SGD probe of 100 epochs."""
    import torch

    from modelhound.data import load_batches, open_dataset
    from modelhound.models import find_models, source_of
    from modelhound.scores import FeatureSet, score

    dataset = open_dataset(data, limit=num_items)
    found = _Plain()
    for model in find_models(models):
        source = source_of(model)
        network = source.build(model.name, source.read_weights(model.name))
        network.module.to(device)
        rows, targets = [], []
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for batch in load_batches(dataset, network.preprocessing, batch=128, workers=count_cores(), device=device):
                rows.append(network.extract(batch.inputs_on(device)))
                targets.append(batch.targets)
        features = FeatureSet(
            features=torch.cat(rows), targets=torch.cat(targets).to(device), num_classes=len(dataset.class_names)
        )
        found.scores[str(model)] = score(features, ["sgd_probe"], seed=0).values["sgd_probe"].value
        found.features[str(model)] = features
    return found


def run_halving(models: Sequence[str], data: str, device: str, num_items: int) -> dict[str, float]:
    """A quarter of the items for all models, half for the better half, all for the better quarter."""
    scores: dict[str, float] = {}
    alive = list(models)
    for share, keep in ((4, 2), (2, 2), (1, 1)):
        limit = num_items // share if share > 1 else None
        scores.update(run_plain(alive, data, device, limit).scores)
        alive = sorted(alive, key=lambda model: -scores[model])[: max(1, len(alive) // keep)]
    return scores


def _search(models: list[str], data: str, device: str, options: dict[str, Any]) -> dict[str, Any]:
    import modelhound
    from modelhound.errors import RequestError

    folder = Path(tempfile.mkdtemp())
    try:
        result = modelhound.search(data, models, device=device, **{"run": folder / "run", **options})
    except RequestError as error:  # such as too little memory for any plan
        return {"error": str(error)}
    finally:
        shutil.rmtree(folder)
    if result.failures:
        raise SystemExit(f"failed: {result.failures[0].model}: {result.failures[0].error}")
    scores = {row.model: row.score for row in result.ranking.models}
    scores |= {each.model: each.score - 1 for each in result.dropped}
    return {
        "scores": scores,
        "phases": result.phases,
        "dropped": len(result.dropped),
        "warnings": list(result.warnings),
    }


def explain(models: list[str], data: str, device: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `hound search --explain` says of a search with these options, and how long it takes to say it."""
    device = _warm_up(device, data)
    from modelhound.records import to_plain
    from modelhound.settings import SearchSettings
    from modelhound.verbs.search import explain_search

    meter = Meter(device)
    foreseen = explain_search(SearchSettings(data, models=tuple(models), device=device, **options))
    said = to_plain(foreseen)
    return {"own_seconds": meter.wall_seconds} | {
        name: said[name] for name in ("phases", "seconds", "least_seconds", "peak_memory_bytes", "rungs")
    }


def contest_ranker(models: list[str], data: str) -> dict[str, Any]:
    """transformer-ranker as it is: its defaults, H-score of the mean of all layers, batches of 32."""
    device = _warm_up("cpu", data)
    from datasets import Dataset

    _stand_in_for_torchmetrics()
    from transformer_ranker import TransformerRanker

    base_bytes = _resident_bytes(device)
    meter = Meter(device)
    with Path(data).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    dataset = Dataset.from_dict({name: [row[name] for row in rows] for name in ("text", "label")})
    # datasets 4 and later give columns that are no lists, which the ranker's own code takes for lists
    texts = TransformerRanker(dataset, text_column="text", label_column="label")
    texts.texts = list(texts.texts)
    folders = [model.removeprefix("file:") for model in models]
    result = texts.run(models=folders, batch_size=32, device=device)
    seconds = meter.wall_seconds
    return {
        "seconds": seconds,
        "peak_bytes": _peak_bytes(meter),
        "base_bytes": base_bytes,
        "read_bytes": 2 * sum((Path(each) / "model.safetensors").stat().st_size for each in folders),  # it loads twice
        "disk_bytes": 0,
        "scores": {f"file:{name}": float(value) for name, value in result.scores.items()},
        "phases": {},
        "dropped": 0,
    }


def _stand_in_for_torchmetrics() -> None:
    """The ranker imports one function of it, for a scorer that is not asked for here."""
    for name in ("torchmetrics", "torchmetrics.functional"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["torchmetrics.functional"].__dict__.setdefault("f1_score", None)


def exhaustive_scores(models: list[str], data: str, device: str) -> dict[str, float]:
    """The ranking of all models, to compare the engine's with: of the plain path, or on a GPU, where that would take minutes,
    of the engine in fp32 without a race, which tests hold equal to it."""
    device = _warm_up(device, data)
    options = {"plain": True} if device == "cpu" else {"precision": "fp32", "exhaustive": True}
    return dict(_search(models, data, device, {**options, "scorers": "ridge"})["scores"])


def measure_floor(models: list[str], data: str, device: str, cold: bool) -> dict[str, Any]:
    """What no search can do without, each by itself: decoding once, every distinct layer once, every distinct byte once.

    Also what the plan for all items would take if memory were no matter.
    """
    import torch

    from modelhound.data import open_dataset
    from modelhound.features.many import Session
    from modelhound.models import find_models
    from modelhound.plan import peak_bytes
    from modelhound.settings import ModelSettings

    device = _warm_up(device, data)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    dataset = open_dataset(data)
    rate = _read_files(models, cold=cold)
    with Session(dataset, ModelSettings(), seed=0, device=device, dtype=dtype, remember=False) as session:
        session.survey(dict.fromkeys(find_models(models), ""), failed=_fail)
        specimens = list(session.specimens.values())
        names = list(session.specimens)
        plan_bytes = peak_bytes(session.planner.plan(names, range(len(dataset)))) + session.planner.beside_bytes(names)
        tensors = {
            digest: specimen.tensors[name].nbytes for specimen in specimens for name, digest in specimen.digests.items()
        }
    decode_seconds, forward_seconds = _run_alone(specimens, dataset, device, dtype)
    return {
        "decode_seconds": decode_seconds,
        "forward_seconds": forward_seconds,
        "read_seconds": sum(tensors.values()) / rate,
        "read_bytes_per_second": rate,
        "distinct_bytes": sum(tensors.values()),
        "plan_bytes": plan_bytes,
    }


def _fail(model: str, phase: str, error: Exception) -> None:
    raise SystemExit(f"failed: {model} in {phase}: {error}")


def _read_files(models: Sequence[str], *, cold: bool) -> float:
    """Bytes per second of reading all weights, one file after the other."""
    paths = [Path(model.removeprefix("file:")) / "model.safetensors" for model in models]
    if cold:
        forget_pages(paths)
    buffer = bytearray(_READ_BYTES)
    meter = Meter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return sum(path.stat().st_size for path in paths) / meter.wall_seconds


def forget_pages(paths: Sequence[Path]) -> None:
    """Ask the system to drop what it holds of these files in memory."""
    os.sync()
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _run_alone(specimens: Sequence[Any], dataset: Any, device: str, dtype: Any) -> tuple[float, float]:
    """Seconds to decode all items for all models, and to run each distinct part once over all of them."""
    from modelhound.features.chains import forms_of
    from modelhound.features.plain import suitable_batch
    from modelhound.features.shelf import Shelf, filled
    from modelhound.features.supply import Supply, input_key

    forms = forms_of(specimens)
    batches = {key: suitable_batch(form, device) for key, form in forms.items()}
    supply = Supply(dataset, device=device, dtype=dtype)
    try:
        few = supply.open(range(min(64, len(dataset))), range(len(dataset)), forms, batches)
        for feed in few.values():
            feed.wait(feed.num_batches - 1)
        meter = Meter(device)
        feeds = supply.open(range(len(dataset)), range(len(dataset)), forms, batches)
        for feed in feeds.values():
            feed.wait(feed.num_batches - 1)
        decode_seconds = meter.wall_seconds
        forward_seconds = 0.0
        for blueprint in {id(each.blueprint): each.blueprint for each in specimens}.values():
            kin = [each for each in specimens if each.blueprint is blueprint]
            with filled(kin[0], Shelf(device)):
                whole, parts = _time_parts(blueprint, feeds[input_key(kin[0].form)], device)
            for number, seconds in enumerate(parts):
                distinct = len({each.fingerprints[number] for each in kin})
                forward_seconds += distinct * whole * seconds / sum(parts)
    finally:
        supply.close()
    return decode_seconds, forward_seconds


def _time_parts(blueprint: Any, feed: Any, device: str) -> tuple[float, list[float]]:
    """Seconds of the whole network over all batches, and of its parts over some: their shares, not their sum, are used."""
    from modelhound.models.computing import computing_features
    from modelhound.models.parts import running

    # from the middle of each stretch: texts come in order of length
    places = range(_SAMPLED_BATCHES)
    numbers = sorted({feed.num_batches * (2 * place + 1) // (2 * _SAMPLED_BATCHES) for place in places})
    count = len(blueprint.anatomy.parts)
    with computing_features(device, blueprint.network):
        inputs = [feed.inputs(number, blueprint.layout) for number in numbers]
        blueprint.network.extract(inputs[0])
        meter = Meter(device)
        with meter.phase("whole"):
            for each in inputs:
                blueprint.network.extract(each)
        values: list[Any] = [None] * len(inputs)
        for part in range(count):
            with running(blueprint.network, blueprint.anatomy, part, part + 1) as run:
                run(inputs[0], values[0])
                with meter.phase(str(part)):
                    values = [run(each, value) for each, value in zip(inputs, values, strict=True)]
    whole, *parts = (samples.total for samples in meter.samples)
    return whole * feed.num_batches / len(numbers), parts
