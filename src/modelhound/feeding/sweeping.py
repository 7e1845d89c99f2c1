"""The few measurements that any run can be composed of: compute(b) per model, load(b, w) per form of input.

In:  a Study and its Ledger
Out: a law for each model and each form of input, and the table of runs that follows
Nothing here makes a whole run. Loading is measured along two lines that cross, all numbers of workers at one batch size and
some batch sizes at one number of workers: the logarithm of its time is nearly a sum of the two. A form of input that few
models share is measured once, beside the one that most share.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.loader_model import Composed, LoadLaw, StepLaw, compose, fit_load, fit_steps
from modelhound.analysis.pairs import Pair
from modelhound.data import Batch, InputForm, OwnTransform, Preprocessing, Tokenising
from modelhound.data.preprocessing import Variant
from modelhound.feeding.ledger import Ledger, Study
from modelhound.feeding.pages import count_bytes, files_of, forget_pages, touch_pages
from modelhound.feeding.runs import make_batch, measure_load, measure_steps, shorten, why_not
from modelhound.records import LoadMeasured, PairFailed, Progress

__all__ = ["Laws", "compose_run", "expect_runs", "find_laws"]

_COMPUTE_ALONE, _LOAD_ALONE = "compute alone", "load alone"

_STEP_SHARE = 4  # the largest batch whose steps are measured is this part of a run; larger ones follow by a line
_NUM_VISITS = 2
_NUM_ROUNDS = 3  # batches that each worker makes when loading is measured
_BYTES_PER_PIXEL, _BYTES_PER_TOKEN = 3 * 4, 3 * 8  # three channels of float32; at most three tensors of int64
_SOON_AGAIN = 0.5  # seconds: what is shorter is measured twice, since the system may just have been busy
_MOST_WORKER_COUNTS = 6
_MOST_COLD_BYTES = 2 << 30  # more would take too long to bring back into memory

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """What runs are composed of."""

    steps: Mapping[str, StepLaw]
    """By model; without those that cannot compute."""
    loads: Mapping[str, LoadLaw]
    """By form of input."""
    forms: Mapping[str, str]
    """The form of each model."""
    cold_slowdown: float | None
    """How much longer loading takes when nothing is in the page cache; None where that could not be told."""

    def load_of(self, model: str) -> LoadLaw:
        return self.loads[self.forms[model]]


def find_laws(study: Study, ledger: Ledger) -> Laws:
    """Measure what is missing. Where nothing can be loaded or computed there are no laws, and failures say why."""
    _measure_steps(study, ledger)
    forms = {model: _form_name(network.preprocessing, model) for model, network in study.networks.items()}
    ordered = [form for form, _ in Counter(forms.values()).most_common()]
    examples = {form: next(model for model in forms if forms[model] == form) for form in ordered}
    cold = _measure_loads(study, ledger, ordered, examples)
    loads: dict[str, LoadLaw] = {}
    for form in ordered:
        runs = [each for each in ledger.loads if each.form == form and each is not cold]
        if runs:
            loads[form] = _follow(loads[ordered[0]], runs) if ordered[0] in loads else fit_load(runs)
    steps = {
        model: fit_steps(measured)
        for model in study.models
        if (measured := [each for each in ledger.steps if each.model == model]) and forms[model] in loads
    }
    return Laws(steps=steps, loads=loads, forms=forms, cold_slowdown=_slowdown(cold, loads))


def expect_runs(study: Study, ledger: Ledger, laws: Laws) -> Floats:
    """Seconds of every model and pair, [models, pairs]; NaN where it is known to fail."""
    expected = np.full((len(study.models), len(study.pairs)), np.nan)
    failed = _failed_cells(study, ledger)
    for row, model in enumerate(study.models):
        for column, pair in enumerate(study.pairs):
            if model in laws.steps and (row, column) not in failed:
                expected[row, column] = compose_run(study, laws, model, pair, study.num_items).seconds
    return expected


def compose_run(study: Study, laws: Laws, model: str, pair: Pair, num_items: int) -> Composed:
    """One run of any length; in passes over the data set where the study's own runs are longer than that."""

    def one_pass(length: int) -> Composed:
        return compose(
            laws.load_of(model),
            laws.steps[model],
            batch=pair[0],
            workers=pair[1],
            num_items=length,
            num_cores=study.num_cores,
        )

    available = len(study.dataset)
    if study.num_items <= available:
        return one_pass(num_items)
    num_whole, rest = divmod(num_items, available)
    if num_whole == 0:
        return one_pass(rest)
    whole, last = one_pass(available), one_pass(rest) if rest else None
    restart = laws.load_of(model).start_of(pair[1]) + laws.load_of(model).stop_of(pair[1])
    saved = restart * (num_whole - 1 + bool(rest)) if study.feed.persistent else 0.0
    sums = {
        name: getattr(whole, name) * num_whole + (getattr(last, name) if last else 0.0)
        for name in ("seconds", "load_seconds", "step_seconds", "shared_seconds")
    }
    sums["seconds"] = max(sums["seconds"] - saved, sums["step_seconds"])
    return Composed(first_batch_seconds=whole.first_batch_seconds, **sums)


def _measure_steps(study: Study, ledger: Ledger) -> None:
    """Every model with some batch sizes, on a CPU twice with all others in between: what disturbs one visit is gone at the
    next. A GPU repeats itself to a percent."""
    batches = _step_batches(sorted({batch for batch, _ in study.pairs}), study.num_items)
    num_visits = _NUM_VISITS if study.feed.device == "cpu" else 1
    plan = list(itertools.product(range(num_visits), batches, study.networks.items()))
    bench = _Workbench(study)
    for done, (visit, batch, (model, network)) in enumerate(plan):
        study.watch(Progress(task="computing alone", done=done, total=len(plan), detail=model))
        num_known = sum((each.model, each.batch) == (model, batch) for each in ledger.steps)
        # a larger batch needs more of whatever was missing for a smaller one
        smaller = [each for each in batches if each <= batch]
        if num_known > visit or any(ledger.has_failed(model, (each, 0), _COMPUTE_ALONE) for each in smaller):
            continue
        ledger.measure(
            lambda network=network, model=model, batch=batch: measure_steps(  # type: ignore[misc]
                network, bench.lay_out(network.preprocessing, batch), study.feed, model=model
            ),
            model=model,
            pair=(batch, 0),
            phase=_COMPUTE_ALONE,
        )
    study.watch(Progress(task="computing alone", done=len(plan), total=len(plan)))


@dataclasses.dataclass(slots=True)
class _Workbench:
    """Batches of one size that lie ready, one for each shape of input: to make them takes longer than a step."""

    study: Study
    batch: int = 0
    ready: dict[tuple[int, int] | int, Batch] = dataclasses.field(default_factory=dict)

    def lay_out(self, form: InputForm, batch: int) -> Batch:
        if batch != self.batch:
            self.batch, self.ready = batch, {}
        # what pixels show makes no difference; what a tokenizer or a transform of one's own makes may
        shape = form.input_size if isinstance(form, Preprocessing) else id(form)
        if shape not in self.ready:
            self.ready[shape] = make_batch(self.study.dataset, form, batch, pin=self.study.feed.pin)
        return self.ready[shape]


def _step_batches(batches: Sequence[int], num_items: int) -> list[int]:
    """The smallest, one in the middle, and the largest that does not take too long; two at least, to draw a line through."""
    cheap = [batch for batch in batches if batch <= num_items // _STEP_SHARE] or list(batches[:1])
    chosen = {cheap[0], cheap[len(cheap) // 2], cheap[-1]}
    if len(chosen) == 1 and len(batches) > 1 and batches[1] <= num_items:
        chosen.add(batches[1])
    return sorted(chosen)


def _measure_loads(
    study: Study, ledger: Ledger, forms: Sequence[str], examples: Mapping[str, str]
) -> LoadMeasured | None:
    """Both lines for the form that most models share, their cheapest point for the others; the cold run, if one was made."""
    base, crossing = _load_pairs(study)
    cheapest = min((pair for pair in base if pair[0] == crossing[0]), key=lambda pair: (pair[1] == 0, pair[1]))
    plan = [(forms[0], pair) for pair in base] + [(form, cheapest) for form in forms[1:]]
    form = study.networks[examples[forms[0]]].preprocessing
    cold = next((each for each in ledger.loads if each.page_cache == "cold"), None)
    if cold is None and not ledger.loads:
        cold = _measure_cold(study, ledger, form, forms[0], crossing)
    bytes_per_item = max(_bytes_per_item(network.preprocessing) for network in study.networks.values())
    for done, (name, pair) in enumerate(plan):
        study.watch(Progress(task="loading alone", done=done, total=len(plan), detail=f"{pair[0]} x {pair[1]}"))
        known = [
            each for each in ledger.loads if (each.form, each.batch, each.workers) == (name, *pair) and each is not cold
        ]
        if known or ledger.has_failed(None, pair, _LOAD_ALONE):
            continue
        _measure_one_load(study, ledger, study.networks[examples[name]].preprocessing, name, pair, bytes_per_item)
    study.watch(Progress(task="loading alone", done=len(plan), total=len(plan)))
    _refuse_too_large(study, ledger, bytes_per_item)
    return cold


def _measure_one_load(
    study: Study,
    ledger: Ledger,
    form: InputForm,
    name: str,
    pair: Pair,
    bytes_per_item: float,
    num_times: int = 2,
) -> None:
    batch, workers = pair
    num_items = min(study.num_items, len(study.dataset), batch * max(1, workers) * _NUM_ROUNDS)
    reason = why_not(batch, workers, bytes_per_item=bytes_per_item, num_items=num_items, prefetch=study.feed.prefetch)
    if reason is not None:
        ledger.add(_refused(study, pair, reason))
        return
    for _ in range(num_times):
        worked = ledger.measure(
            lambda: measure_load(
                study.dataset,
                form,
                study.feed,
                item_kind=study.item_kind,
                form_name=name,
                batch=batch,
                workers=workers,
                num_items=num_items,
            ),
            model=None,
            pair=pair,
            phase=_LOAD_ALONE,
        )
        if not worked or ledger.loads[-1].arrivals[-1] > _SOON_AGAIN:
            break


def _measure_cold(study: Study, ledger: Ledger, form: InputForm, name: str, pair: Pair) -> LoadMeasured | None:
    """Loading with nothing in the page cache; None where it cannot be emptied or did not come from a disk."""
    batch, workers = pair
    data = shorten(study.dataset, min(study.num_items, batch * max(1, workers) * _NUM_ROUNDS))
    files = files_of(data)
    if not 0 < count_bytes(files) <= _MOST_COLD_BYTES or not forget_pages(files):
        return None
    _measure_one_load(study, ledger, form, name, pair, _bytes_per_item(form), num_times=1)
    touch_pages(files)
    if ledger.loads and ledger.loads[-1].page_cache == "cold":
        return ledger.loads[-1]
    return None  # the pages stayed: it counts as what it was, a warm run


def _load_pairs(study: Study) -> tuple[list[Pair], Pair]:
    """The pairs on both lines, and where they cross."""
    batches, workers = (sorted({pair[axis] for pair in study.pairs}) for axis in (0, 1))
    most = max(workers)
    fitting = [batch for batch in batches if batch * max(1, most) * _NUM_ROUNDS <= study.num_items]
    batch = fitting[-1] if fitting else batches[0]
    within = [each for each in workers if 0 < each <= study.num_cores] or [each for each in workers if each] or [0]
    crossing = (batch, within[-1])
    if len(workers) > _MOST_WORKER_COUNTS:
        places = np.linspace(0, len(workers) - 1, _MOST_WORKER_COUNTS).round().astype(int)
        workers = sorted({*(workers[place] for place in places), crossing[1]})
    large = [each for each in batches if each * max(1, crossing[1]) <= study.num_items]
    others = {batches[0], *large[-1:]} - {batch}
    line = [(batch, each) for each in workers] + [(each, crossing[1]) for each in sorted(others)]
    larger = [
        (each, most) for each in batches for most in workers if each > batch and 0 < 2 * most * each <= study.num_items
    ]
    if not others and larger:  # too few items for large batches by all workers: by as many as make two each
        line.append(max(larger))
    if 0 in workers and large:
        line += [(each, 0) for each in sorted(others) if (each, 0) not in line][:1]
    return [crossing, *(pair for pair in line if pair != crossing)], crossing


def _refuse_too_large(study: Study, ledger: Ledger, bytes_per_item: float) -> None:
    """Pairs whose batches would not fit anywhere fail without being tried."""
    known = {(each.batch, each.workers) for each in ledger.failures if each.for_model is None}
    for pair in study.pairs:
        reason = why_not(*pair, bytes_per_item=bytes_per_item, num_items=study.num_items, prefetch=study.feed.prefetch)
        if reason is not None and pair not in known:
            ledger.add(_refused(study, pair, reason))


def _refused(study: Study, pair: Pair, reason: str) -> PairFailed:
    return PairFailed(
        item_kind=study.item_kind, for_model=None, batch=pair[0], workers=pair[1], phase=_LOAD_ALONE, error=reason
    )


def _failed_cells(study: Study, ledger: Ledger) -> set[tuple[int, int]]:
    """A pair that cannot be loaded fails with all models; a batch that cannot be computed with all numbers of workers."""
    found = set()
    for failure in ledger.failures:
        for row, model in enumerate(study.models):
            for column, (batch, workers) in enumerate(study.pairs):
                same_pair = (batch, workers) == (failure.batch, failure.workers)
                too_large = failure.phase == _COMPUTE_ALONE and batch >= failure.batch
                if failure.for_model in (None, model) and (same_pair or too_large):
                    found.add((row, column))
    return found


def _follow(base: LoadLaw, runs: Sequence[LoadMeasured]) -> LoadLaw:
    """The law of another form of input: the same, faster or slower by what was seen at one point."""
    alone = fit_load(runs)
    run = min(runs, key=lambda each: each.arrivals[-1])
    shift = math.log(alone.item_seconds(run.batch, run.workers) / base.item_seconds(run.batch, run.workers))
    if run.workers and run.num_items // run.batch <= run.workers:
        start = base.start_of(run.workers)
        seen = max(run.arrivals[0] - start, run.arrivals[0] / 2) / run.batch
        shift = math.log(seen / base.item_seconds(run.batch, run.workers))
    return dataclasses.replace(
        base,
        by_batch=tuple((place, value + shift) for place, value in base.by_batch),
        inline=tuple((place, value + shift) for place, value in base.inline),
    )


def _slowdown(cold: LoadMeasured | None, loads: Mapping[str, LoadLaw]) -> float | None:
    if cold is None or cold.form not in loads:
        return None
    law = loads[cold.form]
    num_batches = len(cold.arrivals)
    last_size = cold.num_items - (num_batches - 1) * cold.batch
    if cold.workers:
        warm = float(law.arrivals(cold.batch, min(cold.workers, num_batches), num_batches, last_size)[-1])
    else:
        warm = law.item_seconds(cold.batch, 0) * cold.num_items
    return cold.arrivals[-1] / warm


def _bytes_per_item(form: InputForm) -> float:
    if isinstance(form, Tokenising):
        return float(form.max_tokens * _BYTES_PER_TOKEN)
    height, width = form.input_size
    return float(height * width * _BYTES_PER_PIXEL)


def _form_name(form: InputForm, model: str) -> str:
    """The same for inputs that are made in the same way, as far as time goes."""
    if isinstance(form, Preprocessing):
        return Variant.of(form).name
    if isinstance(form, OwnTransform):
        return f"own transform of {model}"
    return f"{form.max_tokens} tokens by {form.fingerprint[:8]}"
