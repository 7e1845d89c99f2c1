"""An analysis in words, with its charts beside it: Markdown that is ready to be committed.

In:  findings, and the charts that show them
Out: README.md in a folder, with a PNG for every chart
Every sentence is made from the numbers of the run; nothing here measures or judges. Anything a terminal shows less of, this
says in full.
"""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from modelhound.analysis.bottlenecks import repeat_ratio
from modelhound.analysis.job_lines import PHASES
from modelhound.analysis.wording import list_text, number_text, plural, seconds_text
from modelhound.errors import RequestError
from modelhound.records import ConfigurationProfiled, Failure, Machine, ProfileFindings, Watch, silent
from modelhound.report.charts import Chart, save_charts
from modelhound.report.profile_charts import place_names
from modelhound.report.writing import write_file

__all__ = [
    "BREAKEVEN_TITLE",
    "bullets",
    "check_folder",
    "embed",
    "machine_text",
    "markdown_table",
    "profile_analysis",
    "write_analysis",
]

_NAME = "README.md"
_PROFILE_TITLE, BREAKEVEN_TITLE = "# Where the time of a model search goes", "# Fine-tuning against searching"
_MOST_COLOURS = 128  # of a picture, with all shades that smooth its letters
_TELLING = ("torch", "timm", "transformers")


def check_folder(folder: Path) -> None:
    """Refuse to write over a README that no analysis wrote."""
    page, begins = folder / _NAME, ""
    with contextlib.suppress(OSError):
        begins = page.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    if page.is_file() and begins.rstrip() not in (_PROFILE_TITLE, BREAKEVEN_TITLE):
        raise RequestError(
            f"cannot use --analysis {str(folder)!r}: expected a folder without a {_NAME} of somebody else's, choose another one"
        )


def write_analysis(text: str, charts: Sequence[Chart], folder: Path, *, watch: Watch = silent) -> Path:
    """The page and its pictures; the path of the page."""
    for picture in save_charts(charts, folder, formats=("png",), watch=watch):
        write_file(picture, _with_fewer_colours(picture))
    return write_file(folder / _NAME, text.encode())


def _with_fewer_colours(picture: Path) -> bytes:
    """The same picture in an eighth of the bytes: charts have few colours, and a repository keeps every version."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(_MOST_COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a column whose name ends in ">" is aligned to the right."""
    head = " | ".join(column.rstrip(">") for column in columns)
    rule = " | ".join("---:" if column.endswith(">") else "---" for column in columns)
    body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return f"| {head} |\n| {rule} |\n{body}\n"


def embed(chart: Chart) -> str:
    """A picture with its words, for those who cannot see it too."""
    return f"![{chart.title}]({chart.name}.png)\n\n*{chart.caption}*\n"


def bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences) + "\n"


def machine_text(machine: Machine) -> str:
    """Hardware and versions, without the machine's name."""
    parts = [
        machine.cpu,
        plural(machine.num_cores, "core"),
        f"{machine.memory_bytes / 2**30:.0f} GiB of memory",
        *machine.gpus,
    ]
    versions = [f"{name} {machine.versions[name]}" for name in _TELLING if machine.versions.get(name, "none") != "none"]
    return f"{', '.join(parts)}; {', '.join([*versions, f'Python {machine.python}'])}"


def profile_analysis(
    records: Sequence[ConfigurationProfiled],
    findings: ProfileFindings,
    charts: Sequence[Chart],
    *,
    failures: Sequence[Failure] = (),
    notes: Sequence[str] = (),
    machine: Machine | None = None,
    run: str = "",
) -> str:
    """Where the time of a search goes, what to do about it, and how it was measured."""
    sections = [
        f"{_PROFILE_TITLE}\n",
        _opening(records, findings),
        _side_by_side(records, findings),
    ]
    for place, name in place_names(records).items():
        here = [record for record in records if (record.data, record.device) == place]
        sections += [f"## {place[0]} on {place[1]}\n", _phases_table(here)]
        sections += _embed_of(charts, name, "seconds", "shares")
        sections += ["### What takes most of the time\n", _bottlenecks(findings, place)]
        sections += ["### Where the bottleneck moves as items grow\n", _moves(findings, place)]
        sections += _embed_of(charts, name, "crossover", "items")
        if any((each.data, each.device) == place for each in findings.savings):
            sections += ["### What running less saves\n", _savings(findings, place)]
            sections += _embed_of(charts, name, "savings")
        sections += ["### Reading weights, and scoring\n", _reading(here), _scoring(here)]
    sections += ["## How it was measured\n", _method(records, findings, machine, run)]
    if notes:
        sections.append(bullets(notes))
    if failures:
        sections += ["## What could not be measured\n"]
        sections.append(bullets([f"{each.model}, {each.phase}: {each.error}" for each in failures]))
    return "\n".join(sections)


def _embed_of(charts: Sequence[Chart], name: str, *kinds: str) -> list[str]:
    """The charts of one data set and device; its name may be the end of another's."""
    wanted = {f"profile_{kind}_{name}" for kind in kinds}
    return [embed(chart) for chart in charts if chart.name in wanted]


def _opening(records: Sequence[ConfigurationProfiled], findings: ProfileFindings) -> str:
    full = [each for each in findings.bottlenecks if each.configuration == "full"]
    models = list(dict.fromkeys(record.model for record in records))
    text = (
        f"{plural(len(models), 'model')} ({list_text(models, most=10)}) {'was' if len(models) == 1 else 'were'} run from the "
        f"file of weights to the score: {plural(len(records), 'job')} in all."
    )
    lines = []
    for data, device in dict.fromkeys((each.data, each.device) for each in full):
        here = [each for each in full if (each.data, each.device) == (data, device)]
        by_bottleneck: dict[str, list[str]] = {}
        for each in here:
            by_bottleneck.setdefault(each.bottleneck, []).append(each.model)
        ordered = sorted(by_bottleneck.items(), key=lambda item: -len(item[1]))
        found = [f"**{name}** of {list_text(models, most=10)}" for name, models in ordered]
        lines.append(f"{data} on {device}: what takes most of the time is {'; '.join(found)}.")
    return f"{text}\n\n{bullets(lines)}"


def _side_by_side(records: Sequence[ConfigurationProfiled], findings: ProfileFindings) -> str:
    """Full models on every data set and device: a GPU beside a CPU, prepared items beside raw ones."""
    full = {(each.model, each.data, each.device): each for each in records if each.form == "full"}
    bottlenecks = {
        (each.model, each.data, each.device): each for each in findings.bottlenecks if each.configuration == "full"
    }
    places = list(dict.fromkeys(key[1:] for key in full))
    if len(places) < 2:
        return ""
    rows = []
    for model in dict.fromkeys(key[0] for key in full):
        cells = []
        for place in places:
            record, found = full.get((model, *place)), bottlenecks.get((model, *place))
            if record is None or found is None:
                cells.append("")
                continue
            share = found.seconds[found.bottleneck] / record.wall_seconds
            cells.append(f"{number_text(record.num_items / record.wall_seconds)}/s, {found.bottleneck} {share:.0%}")
        rows.append([model, *cells])
    columns = ["model", *(f"{data} on {device}>" for data, device in places)]
    return "Items per second end to end, and the share of what takes most:\n\n" + markdown_table(columns, rows)


def _phases_table(records: Sequence[ConfigurationProfiled]) -> str:
    rows = []
    for record in records:
        spent = [record.seconds_of(phase) for phase in PHASES]
        rows.append(
            [
                record.model,
                record.configuration,
                f"{record.num_layers_run}/{record.num_layers}",
                *(f"{1000 * seconds:,.1f}" for seconds in spent),
                f"{1000 * (record.wall_seconds - sum(spent)):,.1f}",
                f"{1000 * record.wall_seconds:,.1f}",
            ]
        )
    columns = ["model", "layers", "run>", *(f"{phase}>" for phase in PHASES), "other>", "end to end>"]
    return "Milliseconds; run is how many layers, of each head where there are several:\n\n" + markdown_table(
        columns, rows
    )


def _bottlenecks(findings: ProfileFindings, place: tuple[str, str]) -> str:
    """Full models in sentences, all configurations in a table."""
    here = [each for each in findings.bottlenecks if (each.data, each.device) == place]
    rows = []
    for each in here:
        share = each.seconds[each.bottleneck] / sum(each.seconds.values())
        low, high = each.interval
        rows.append(
            [
                each.model,
                each.configuration,
                each.bottleneck,
                f"{share:.0%}",
                f"{each.speedups[each.bottleneck]:.2f}x [{low:.2f}, {high:.2f}]",
                "–" if each.warm_speedup is None else f"{each.warm_speedup:.2f}x",
            ]
        )
    columns = ["model", "layers", "bottleneck", "share>", "faster with it for free>", "with weights in the page cache>"]
    full = [each.sentence for each in here if each.configuration == "full"]
    return (bullets(full) + "\n" if full else "") + markdown_table(columns, rows)


def _moves(findings: ProfileFindings, place: tuple[str, str]) -> str:
    here = [each for each in findings.moves if (each.data, each.device) == place]
    if not here:
        return "It does not: the same phase costs most from the first item on.\n"
    rows = [
        [
            each.model,
            each.configuration,
            f"{each.before} → {each.after}",
            f"{each.num_items:,.0f}",
            f"[{each.interval[0]:,.0f}, {each.interval[1]:,.0f}]" if each.interval else "not in all samples",
            "measured" if each.is_measured else "extrapolated",
        ]
        for each in here
    ]
    full = [each.sentence for each in here if each.configuration == "full"]
    table = markdown_table(["model", "layers", "moves", "at items>", "interval>", ""], rows)
    return (bullets(full) + "\n" if full else "") + table


def _savings(findings: ProfileFindings, place: tuple[str, str]) -> str:
    """How good multiplications are as a forecast, and every saving in a table."""
    here = [each for each in findings.savings if (each.data, each.device) == place]
    rows = [
        [
            each.model,
            each.configuration,
            f"{each.predicted:.2f}x",
            f"{each.forward:.2f}x [{each.forward_interval[0]:.2f}, {each.forward_interval[1]:.2f}]",
            f"{each.end_to_end:.2f}x [{each.end_to_end_interval[0]:.2f}, {each.end_to_end_interval[1]:.2f}]",
        ]
        for each in here
    ]
    miss = median(max(each.predicted / each.forward, each.forward / each.predicted) - 1 for each in here)
    kept = median(each.end_to_end / each.forward for each in here)
    words = (
        f"Multiplications forecast the saving in the forward pass with a median error of {miss:.0%}. End to end, {kept:.0%} "
        "of that saving is left in the median: the rest of a job does not shrink along.\n\n"
    )
    if place[1] != "cpu":
        words += (
            "Whole and joint models run while loader processes keep the host's cores busy, last layers do not: where the host "
            "has to start every kernel, that alone makes a forward pass slower, and the saving larger than predicted.\n\n"
        )
    columns = ["model", "layers", "predicted by FLOPs>", "forward, measured>", "end to end, measured>"]
    return words + markdown_table(columns, rows)


def _reading(records: Sequence[ConfigurationProfiled]) -> str:
    full = [record for record in records if record.form == "full"]
    if not full:
        return ""
    rows = []
    for record in full:
        cold, warm = record.cold_read_seconds, record.warm_read_seconds
        rows.append(
            [
                record.model,
                f"{record.weight_bytes / 1e6:,.0f} MB",
                seconds_text(median(cold)) if cold else "cannot be told here",
                seconds_text(median(warm)),
                f"{record.weight_bytes / median(cold) / 1e9:.2f} GB/s" if cold else "–",
                seconds_text(record.seconds_of("build model")),
                seconds_text(record.usual_build_seconds[0]) if record.usual_build_seconds else "–",
            ]
        )
    columns = ["model", "weights>", "from the disk>", "from the page cache>", "disk>", "build>", "build the usual way>"]
    return (
        markdown_table(columns, rows)
        + "\nModels are built without memory and then given their tensors; the usual way draws random weights first.\n"
    )


def _scoring(records: Sequence[ConfigurationProfiled]) -> str:
    full = [record for record in records if record.form == "full"]
    kinds = list(dict.fromkeys((each.scorer, each.num_classes) for record in full for each in record.scorings))
    if not kinds:
        return ""
    rows = []
    for record in full:
        times = {
            (each.scorer, each.num_classes): median(each.seconds)
            for each in record.scorings
            if each.num_items >= record.num_items
        }
        rows.append([record.model, *(seconds_text(times[kind]) if kind in times else "–" for kind in kinds)])
    columns = ["model", *(f"{scorer}, {classes} classes>" for scorer, classes in kinds)]
    return "\n" + markdown_table(columns, rows)


def _method(
    records: Sequence[ConfigurationProfiled], findings: ProfileFindings, machine: Machine | None, run: str
) -> str:
    first = records[0]
    loads = list(
        dict.fromkeys(
            f"{record.num_batches} batches of {record.batch} on {record.device} ({record.precision})"
            for record in records
        )
    )
    cold = all(record.cold for record in records)
    warmup = "batch" if first.num_warmup == 1 else f"{first.num_warmup} batches"
    lines = [f"The machine: {machine_text(machine)}."] if machine is not None else []
    lines += [
        f"Every job runs {list_text(loads, most=8)}; rates leave out the first {warmup}, which is warm-up.",
        "Weights are read from real files, to their last byte"
        + (
            ", after these were dropped from the page cache; whether they were gone was looked up."
            if cold
            else "; on this machine files could not be dropped from the page cache, so that they were read from memory."
        ),
        "Last layers are fed with stored outputs of the layers before, read from the disk a batch at a time. A layer is a "
        "stretch of the network that multiplies; pooling and normalisation belong to the one before.",
        "A joint model reads its trunk once and every head from a file of its own; apart, each model is a job of its own.",
        "Classes to score by are made up: only the time is wanted. "
        f"The first scorer with {first.scorings[0].num_classes if first.scorings else 0} classes counts into the job.",
        "Loader processes work while the network does, so loading is also timed by itself: with the forward pass for free, "
        "what it hides of that would be waited for.",
        f"The phases leave at most {findings.unaccounted:.1%} of any wall clock unaccounted for. Intervals are "
        f"{findings.confidence:.0%}, from how batches vary, and readings and scores that are repeated.",
    ]
    ratio = repeat_ratio(records)
    if ratio is not None:
        lines.append(
            f"A full model and its twin apart are the same work: their forward passes differ by a factor of up to {ratio:.2f}. "
            "Differences between jobs that are smaller than that may be the machine's, whatever their interval."
        )
    if run:
        lines.append(f"All samples are in the run folder `{run}`.")
    return bullets(lines)
