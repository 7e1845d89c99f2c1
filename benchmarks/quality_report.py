"""What quality.py found, for people: tables as Markdown, charts, and the laws as they stand in analysis/foretelling.py.

In:  what `quality_judging.judge_all` says
Out: a Markdown text; charts
Nothing here judges.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modelhound.report.charts import Chart, Row

if TYPE_CHECKING:
    import altair

__all__ = ["quality_charts", "show_table", "write_report"]

_SHOWN = (
    "a second seed of the truth",
    "ridge",
    "fusion of scorers, size, family",
    "size",
    "finals 13%",
    "finals 13%, thirds in turns",
    "halving on fine-tuning",
)
_CHARTED = (
    *(
        "a second seed of the truth",
        "finals 25%",
        "finals 13%",
        "finals 13%, thirds in turns",
        "finals 10%",
        "finals 5%",
        "halving on fine-tuning",
        "halving, thirds in turns",
    ),
    *("fusion of scorers, size, family", "ridge", "knn", "probe", "hscore", "logme", "size", "published accuracy"),
)
_COLOURS = (  # of targets, of which there are more than the usual palette has colours
    *("#1f4fd8", "#e07a10", "#0a8f6a", "#b0309c", "#0a9cc4", "#8a6a00", "#9c1430", "#5a2a82"),
    *("#7a7a7a", "#e0559a", "#5fae2e", "#2f4858", "#c8a415"),
)


def write_report(judged: Mapping[str, Any]) -> str:
    """Everything, with the hardware."""
    lines = ["## Everybody against the truth", "", show_table(judged), "", "## Targets", ""]
    heads = ("target", "items", "classes", "candidates", "seeds", "two of them differ by", "pairs told apart", "best")
    heads += ("its accuracy", "median", "made on")
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for target, row in judged["targets"].items():
        lines.append(
            f"| {target} | {sum(row['counts'])} | {len(row['counts'])} | {row['num_candidates']} | {row['num_seeds']} "
            f"| {100 * 2**0.5 * row['seed_deviation']:.1f} | {row['told_apart']:.0%} | {row['best']} "
            f"| {row['best_score']:.1%} | {row['median_score']:.1%} | {row['hardware']} |"
        )
    lines += ["", "## Laws", "", "```python", "LAWS = ("]
    for law in judged["prediction"]["laws"]:
        lines.append(f"    Law({', '.join(f'{name}={value:.3g}' for name, value in law.items())}),")
    return "\n".join([*lines, ")", "```", ""])


def show_table(judged: Mapping[str, Any]) -> str:
    """Means over all targets, some ways target by target, and the verdicts on fusion and prediction."""
    lines = [
        "| ranked by | weighted tau | of pairs told apart | points lost: first | best of three | cost |",
        "|---" * 6 + "|",
    ]
    for way, row in judged["means"].items():
        lines.append(
            f"| {way} | {row['weighted tau']:+.2f} | {row['told apart']:+.2f} | {row['lost by first']:.2f} "
            f"| {row['lost by best of three']:.2f} | {row['cost']:.1%} |"
        )
    shown = [way for way in _SHOWN if way in judged["means"]]
    lines += ["", "Weighted tau / that of pairs told apart / points lost by taking the first:", ""]
    lines += ["| target | candidates | " + " | ".join(shown) + " |", "|---" * (len(shown) + 2) + "|"]
    for target, table in judged["tables"].items():
        cells = [
            f"{table[way]['weighted tau']:+.2f} / {table[way]['told apart']:+.2f} / {table[way]['lost by first']:.1f}"
            for way in shown
        ]
        lines.append(f"| {target} | {judged['targets'][target]['num_candidates']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_show_verdicts(judged)])


def _show_verdicts(judged: Mapping[str, Any]) -> list[str]:
    fusion, prediction = judged["fusion"], judged["prediction"]
    if "because" in fusion:
        lines = [f"Fusion: not judged, {fusion['because']}."]
    else:
        lines = [
            f"Fusion: weighted tau {fusion['weighted tau']:+.3f} on targets that it was not learned from, its best part "
            f"({fusion['best part']}) {fusion['its weighted tau']:+.3f}{_show_strangers(fusion)}: "
            f"{'shipped' if fusion['ships'] else 'not shipped'}."
        ]
    lines += ["", "Foretold accuracy, by laws of the other targets:", ""]
    lines += [
        "| after | networks | mean error, points | 90 % intervals cover | their mean width, points |",
        "|---" * 5 + "|",
    ]
    for row in prediction["stages"]:
        lines.append(
            f"| {row['epochs']} epochs | {row['num']} | {100 * row['mean error']:.1f} | {row['coverage']:.0%} "
            f"| {100 * row['width']:.0f} |"
        )
    chances = judged["chances"]
    by_target = [f"{name} {said:.0%} and {true:.0%}" for name, (said, true) in chances["by target"].items()]
    lines += [
        "",
        f"The first of {chances['num']} races at 13% (thirds in turns) was the best in {chances['came true']:.0%}; the races "
        f"gave it a chance of {chances['said']:.0%} on average. Of {chances['num races']} races at all budgets "
        f"{chances['certain']} ended certain, {chances['certain and right']} of them rightly. Said and come true, by target: "
        f"{', '.join(by_target)}.",
    ]
    return lines


def _show_strangers(fusion: Mapping[str, Any]) -> str:
    if fusion["of strangers"] is None:
        return ""
    return (
        f"; of networks whose families it was not learned from either, {fusion['of strangers']:+.3f} against "
        f"{fusion['best part of strangers']:+.3f}"
    )


def quality_charts(judged: Mapping[str, Any]) -> tuple[Chart, ...]:
    """How far each way of ranking is to be trusted, and whether foretold accuracy comes true."""
    return (_ways(judged), _foretold(judged))


def _ways(judged: Mapping[str, Any]) -> Chart:
    ways = [way for way in _CHARTED if way in judged["means"]]
    rows: list[Row] = [
        {"way": way, "target": target, "tau": table[way]["weighted tau"], "lost": table[way]["lost by first"]}
        for target, table in judged["tables"].items()
        for way in ways
        if way in table
    ]
    return Chart(
        name="trust_ways",
        title="How well each way of ranking agrees with full fine-tuning",
        caption="A dot for each target, a bar for their mean; a second seed shows how far the truth agrees with itself.",
        data=tuple(rows),
        draw=lambda data: _draw_ways(data, ways),
    )


def _draw_ways(data: Any, ways: list[str]) -> "altair.TopLevelMixin":
    import altair

    sides = []
    for field, title in (("tau", "weighted tau"), ("lost", "points lost by taking the first")):
        names = altair.Axis() if not sides else None  # once for both
        base = altair.Chart(data).encode(y=altair.Y("way:N", title=None, sort=ways, axis=names))
        dots = base.mark_circle(opacity=0.6, size=40).encode(x=altair.X(f"{field}:Q", title=title))
        means = base.mark_tick(thickness=3, size=16).encode(x=altair.X(f"mean({field}):Q", title=title))
        sides.append((dots + means).properties(width=240))
    chart: altair.TopLevelMixin = altair.hconcat(*sides)
    return chart


def _foretold(judged: Mapping[str, Any]) -> Chart:
    rows: list[Row] = [
        row for row in judged["prediction"]["points"] if row["stage"] == len(judged["prediction"]["stages"]) - 1
    ]
    return Chart(
        name="trust_foretold",
        title="Accuracy foretold after short training, and what full fine-tuning reached",
        caption="Each target is foretold by laws of the others; bars are 90 % intervals. On the line, the word was kept.",
        data=tuple(rows),
        draw=_draw_foretold,
    )


def _draw_foretold(data: Any) -> "altair.TopLevelMixin":
    import altair

    ends = altair.Scale(zero=False)
    base = altair.Chart(data).encode(
        x=altair.X("full:Q", title="accuracy reached", scale=ends, axis=altair.Axis(format="%"))
    )
    bars = base.mark_rule(opacity=0.5).encode(
        y=altair.Y("low:Q", title="accuracy foretold", scale=ends, axis=altair.Axis(format="%")), y2="high:Q"
    )
    dots = base.mark_circle(size=50).encode(
        y=altair.Y("foretold:Q", scale=ends),
        color=altair.Color("target:N", title=None, scale=altair.Scale(range=list(_COLOURS))),
    )
    kept = base.mark_line(strokeDash=[4, 4]).encode(y=altair.Y("full:Q", scale=ends))
    chart: altair.TopLevelMixin = (bars + kept + dots).properties(height=320)
    return chart
