"""The analysis of fine-tuning against searching, in words.

In:  BreakevenFindings and the charts that show them
Out: Markdown
Every sentence is made from the numbers of the run; the published figures stand beside them, and are marked as such.
"""

from collections.abc import Sequence

from modelhound.analysis.breakeven import PUBLISHED_CHAIN, extrapolate, published_counts
from modelhound.analysis.breakeven_wording import TRAININGS, WAYS, cost_text, span_text
from modelhound.analysis.wording import number_text, plural, seconds_text, span_of_seconds_text
from modelhound.records import BreakevenFindings, ExtrapolationStep, Failure, Machine
from modelhound.report.analysis_text import BREAKEVEN_TITLE, bullets, embed, machine_text, markdown_table
from modelhound.report.charts import Chart

__all__ = ["breakeven_analysis"]

_PUBLISHED_SECONDS = 91.0
_PUBLISHED_ROWS = (
    ("ResNet-50", 1000, 26.4, 1.3),
    ("ResNet-50", 4000, 91.0, 3.9),
    ("ViT-L/16", 1000, 282.4, 11.5),
    ("ViT-L/16", 4000, 1108.0, 45.5),
)
"""Model, items, seconds of ten epochs and of extracting features: an RTX A5000 in fp32."""

_PUBLISHED_HOURS = (250, 300)
_REASONS = (
    "hyper-parameters that were tried and are not counted",
    "larger inputs, heavier augmentation and tests after every epoch",
    "loading that the GPU waits for",
    "models that are slower to train than their inference time tells",
)


def breakeven_analysis(
    findings: BreakevenFindings,
    charts: Sequence[Chart],
    *,
    data: str,
    device: str,
    failures: Sequence[Failure] = (),
    notes: Sequence[str] = (),
    machine: Machine | None = None,
    run: str = "",
) -> str:
    """Ratios, counts, extrapolations, and what they rest on."""
    drawn = {chart.name: chart for chart in charts}
    sections = [
        f"{BREAKEVEN_TITLE}\n",
        f"Measured on {data}, {device}. {_opening(findings)}\n",
        "## What each job takes\n",
        _ratios(findings),
        *(embed(drawn[name]) for name in ("breakeven_times",) if name in drawn),
        "## From how many models on searching takes longer\n",
        _counts(findings),
        *(embed(chart) for name, chart in drawn.items() if name.startswith("breakeven_models")),
        _ways(findings),
        *(embed(drawn[name]) for name in ("breakeven_search",) if name in drawn),
    ]
    if findings.training or findings.searching:
        sections += ["## Extrapolated\n", "Fine-tuning:\n", _chain(findings, findings.training)]
        sections += ["Searching:\n", _chain(findings, findings.searching)]
        sections += [f"{findings.extrapolated}\n"] if findings.extrapolated else []
    measured_on = [f"The machine: {machine_text(machine)}."] if machine is not None else []
    sections += ["## What this rests on\n", bullets([*measured_on, *findings.assumptions, *notes])]
    sections += ["## The published figures, for comparison\n", _published()]
    if failures:
        sections += ["## What could not be measured\n"]
        sections.append(bullets([f"{each.model}, {each.phase}: {each.error}" for each in failures]))
    if run:
        sections.append(f"All samples are in the run folder `{run}`.\n")
    return "\n".join(sections)


def _opening(findings: BreakevenFindings) -> str:
    """The first model on the most items: how much longer training takes, and both scenarios."""
    most = max((each.num_items for each in findings.counts), default=0)
    shown = [each for each in findings.counts if each.num_items == most and each.way == "plain"]
    rows = [row for row in findings.rows if shown and (row.model, row.num_items) == (shown[0].model, most)]
    ratios = [
        f"Fine-tuning {row.model} for {plural(row.num_epochs, 'epoch')} on {row.num_items:,} items takes "
        f"{row.ratios['full']:.0f} times as long as extracting their features once."
        for row in rows
        if "full" in row.ratios
    ]
    return " ".join([*ratios, *(each.sentence for each in shown if each.model == shown[0].model)])


def _counts(findings: BreakevenFindings) -> str:
    rows = [
        [
            each.model,
            f"{each.num_items:,}",
            each.scenario,
            WAYS.get(each.way, each.way),
            span_text(each.training_seconds, each.training_seconds),
            seconds_text(each.search_seconds_per_model),
            f"{each.num_models:,} [{each.interval[0]:,}, {each.interval[1]:,}]",
            f"{each.over_epochs[0]:,} to {each.over_epochs[1]:,}" if each.over_epochs else "",
        ]
        for each in findings.counts
    ]
    columns = [
        "model",
        "items>",
        "scenario",
        "search",
        "training>",
        "search per model>",
        "models>",
        "over the range of epochs>",
    ]
    return "Above so many models the search takes longer than the training:\n\n" + markdown_table(columns, rows)


def _ratios(findings: BreakevenFindings) -> str:
    modes = [mode for mode in TRAININGS if any(mode in row.seconds for row in findings.rows)]
    rows = []
    for row in findings.rows:
        cells = []
        for mode in modes:
            if mode not in row.seconds:
                cells += ["–", "–"]
                continue
            low, high = row.intervals[mode]
            cells += [f"{row.seconds[mode]:.2f} s", f"{row.ratios[mode]:.1f}x [{low:.1f}, {high:.1f}]"]
        rows.append([row.model, f"{row.num_items:,}", f"{row.seconds['extract']:.2f} s", *cells])
    heads = [name for mode in modes for name in (f"{TRAININGS[mode]}>", "against features>")]
    epochs = findings.rows[0].num_epochs if findings.rows else 0
    return f"{plural(epochs, 'epoch')} each, 80% of the items to learn from and 20% to test on:\n\n" + markdown_table(
        ["model", "items>", "features>", *heads], rows
    )


def _ways(findings: BreakevenFindings) -> str:
    if not findings.ways:
        return ""
    rows = [
        [
            WAYS.get(way.way, way.way),
            seconds_text(way.start_seconds),
            seconds_text(way.seconds_per_model),
            span_of_seconds_text(way.interval),
            f"{max(way.num_models)}",
        ]
        for way in findings.ways
    ]
    columns = ["way of searching", "start>", "per model>", "interval>", "measured up to>"]
    return "How the time of a search grows with the models of the pool:\n\n" + markdown_table(columns, rows)


def _chain(findings: BreakevenFindings, steps: Sequence[ExtrapolationStep]) -> str:
    rows = [
        [
            step.assumption,
            " to ".join(dict.fromkeys(map(number_text, (step.low, step.high)))),
            span_text(*step.seconds),
            cost_text(findings, *step.seconds),
        ]
        for step in steps
    ]
    return markdown_table(["assumption", "factor>", "then>", "cost"], rows)


def _published() -> str:
    rows = [
        [model, f"{items:,}", f"{training:g} s", f"{extract:g} s", f"{training / extract:.0f}x"]
        for model, items, training, extract in _PUBLISHED_ROWS
    ]
    table = markdown_table(["model", "items>", "ten epochs>", "features>", "ratio>"], rows)
    steps = extrapolate(_PUBLISHED_SECONDS, PUBLISHED_CHAIN)
    low, high = (each / 3600 for each in steps[-1].seconds)
    chain = "; ".join(f"{step.assumption}: {span_text(*step.seconds)}" for step in steps)
    return (
        f"{table}\nAn RTX A5000, fp32. From these figures alone:\n\n"
        + bullets([each.sentence for each in published_counts()])
        + f"\nA published comparison took {_PUBLISHED_HOURS[0]}-{_PUBLISHED_HOURS[1]} h to fine-tune 100 models. From "
        f"{_PUBLISHED_SECONDS:g} s: {chain}. That is {low:.0f} to {high:.0f} h, still {_PUBLISHED_HOURS[0] / high:.0f} to "
        f"{_PUBLISHED_HOURS[0] / low:.0f} times less than {_PUBLISHED_HOURS[0]} h. Possible reasons: "
        f"{'; '.join(_REASONS)}.\n"
    )
