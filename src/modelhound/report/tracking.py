"""Runs as runs of MLflow: parameters, metrics, artefacts.

In:  a run, the address of a tracking server or store, and files to attach
Out: one MLflow run
MLflow is an extra. Nothing here knows a verb: settings become parameters, the numbers of the answer and of the records metrics.
"""

import contextlib
import math
import os
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.newest import newest_failures
from modelhound.errors import RequestError
from modelhound.records import Failure, ItemMap, ItemSkipped, RunStarted
from modelhound.report.flattening import Scalar, flat_row, flat_rows_by_kind
from modelhound.store import Run

__all__ = ["log_to_mlflow"]

_EXPERIMENT = "modelhound"
_MOST_PARAMETER = 500  # characters that every version of MLflow takes
_MOST_METRICS = 2000
_NAMING = (
    *("model", "data", "device", "precision", "configuration", "mode", "way", "item_kind", "num_ranks", "rank"),
    *("num_models", "num_items", "batch", "image", "tokens", "workers", "axis", "held", "scenario"),
)
"""What tells records of one kind from each other."""


def log_to_mlflow(run: Run, address: str, artefacts: Mapping[str, Sequence[Path]] = types.MappingProxyType({})) -> str:
    """The id of the MLflow run that now holds parameters, metrics and artefacts of `run`; artefacts by folder."""
    os.environ.setdefault(
        "MLFLOW_LOGGING_LEVEL", "WARNING"
    )  # read when it is imported; its tables are its own business
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise RequestError(
            "cannot use --mlflow: expected the package mlflow, install it with: pip install 'modelhound[mlflow]'"
        ) from None
    try:
        client = MlflowClient(tracking_uri=address)
        found = client.get_experiment_by_name(_EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(_EXPERIMENT)
        named = {_name(key): _text(value) for key, value in run.settings.items()}
        made = _find_earlier(client, experiment, run, named) or client.create_run(experiment, run_name=run.path.name)
        identity = made.info.run_id
        parameters = [Param(name, value) for name, value in named.items()]
        metrics = [Metric(key, value, made.info.start_time, 0) for key, value in _metrics(run).items()]
        tags = [RunTag(key, value) for key, value in _tags(run).items()]
        for start in range(0, max(len(metrics), 1), 900):  # a server takes a thousand at once
            client.log_batch(
                identity,
                metrics=metrics[start : start + 900],
                params=parameters if start == 0 else [],
                tags=tags if start == 0 else [],
            )
        for folder, paths in artefacts.items():
            for path in paths:
                client.log_artifact(identity, str(path), folder or None)
        client.set_terminated(identity)
    except (MlflowException, OSError, ValueError) as error:
        said = str(error).strip().splitlines()
        raise RequestError(
            f"cannot write to --mlflow {address!r}: expected a tracking server or a store such as sqlite:///mlflow.db, but "
            f"{said[0] if said else type(error).__name__}"
        ) from None
    return str(identity)


def _find_earlier(client: Any, experiment: str, run: Run, parameters: Mapping[str, str]) -> Any:
    """What an earlier export of the same run made, or None: a second export brings it up to date.

    A run that was resumed is the same run, unless it was given other settings: MLflow never changes a parameter.
    """
    begun = _begun_at(run)
    alike = client.search_runs([experiment], filter_string=f"tags.begun_at = '{begun}'") if begun else ()
    same = (each for each in alike if each.data.tags.get("run_folder") == str(run.path))
    return next((each for each in same if each.data.params == parameters), None)


def _begun_at(run: Run) -> str:
    """When this run was started first; `run.at` is when it was started last."""
    return next((each.at for each in run.of(RunStarted)), run.at)


def _metrics(run: Run) -> dict[str, float]:
    """Every number of the answer and the records; of a list of things, under what tells each from the others."""
    answer = msgspec.json.decode(run.answer) if run.answer is not None else {}
    found: dict[str, float] = {"failures": float(len(newest_failures(run.records)))}
    lists = {}
    if isinstance(answer, dict):
        lists = {name: each for name, each in answer.items() if _is_list_of_things(each)}
        found |= _numbers("", flat_row({name: each for name, each in answer.items() if name not in lists}))
    for name, things in lists.items():
        rows = [flat_row(thing) for thing in things]
        telling, taken = _telling(rows), set[str]()
        for place, (thing, row) in enumerate(zip(things, rows, strict=True)):
            named = [str(thing[key]) for key in ("model", "name", "kind", "data") if key in thing][:1]
            named += [text for each in telling if (text := str(row.get(each, ""))) not in ("", "None", *named)]
            own = " ".join(named) or str(place)
            own = f"{own} {place}" if own in taken else own  # of two that nothing tells apart, none may be lost
            taken.add(own)
            found |= _numbers(f"{name}/{own}/", row)
    return dict(list((found | _record_metrics(run)).items())[:_MOST_METRICS])


def _record_metrics(run: Run) -> dict[str, float]:
    """Every number of the records, under what tells one record from the others of its kind."""
    found: dict[str, float] = {}
    records = [each for each in run.records if not isinstance(each, RunStarted | Failure | ItemMap | ItemSkipped)]
    for kind, rows in flat_rows_by_kind(records).items():
        telling = _telling(rows)
        for row in rows:
            own = " ".join(str(row[name]) for name in telling if row.get(name) is not None)
            found |= _numbers(f"{kind}/{own}/" if own else f"{kind}/", row)
    return found


def _telling(rows: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """The model, and as few other names as tell the rows from each other."""
    naming = [
        name for name in dict.fromkeys(name for row in rows for name in row) if name.rpartition(".")[2] in _NAMING
    ]
    found = [name for name in naming if name.endswith("model")]
    for name in naming:
        values = {row.get(name) for row in rows}
        if (
            name not in found
            and len(values) > 1
            and len({tuple(row.get(each) for each in found) for row in rows}) < len(rows)
        ):
            found.append(name)
    return found


def _is_list_of_things(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _numbers(prefix: str, row: Mapping[str, Scalar]) -> dict[str, float]:
    numbers = {}
    for name, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            numbers[_name(f"{prefix}{name}")] = float(value)
    return numbers


def _tags(run: Run) -> dict[str, str]:
    tags = {"verb": run.verb, "begun_at": _begun_at(run), "asked_at": run.at}
    tags |= {"headline": run.headline, "run_folder": str(run.path)}
    with contextlib.suppress(IndexError):
        started = run.of(RunStarted)[-1]
        tags |= {"device": started.device, "cpu": started.machine.cpu, "gpus": ", ".join(started.machine.gpus)}
    return {name: value for name, value in tags.items() if value}


def _name(text: str) -> str:
    """Names hold letters, digits and a few signs, and are short."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", text)[:240]


def _text(value: Any) -> str:
    return (", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))[:_MOST_PARAMETER]
