"""The page that any verb gets: its words on top, its numbers in tables, whatever they look like."""

import re
from pathlib import Path

import msgspec

from modelhound.records import Failure, LoaderUsed, ModelDropped, PairFailed, Record, RunStarted
from modelhound.report.common_sections import find_failures
from modelhound.report.flattening import find_sentences, flat_row, flat_table
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.report.parts import Table, plain_text
from modelhound.store import open_run, read_run
from report_runs import AT, MACHINE


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    sentence: str
    interval: tuple[float, float]
    samples_seconds: tuple[float, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    findings: tuple[Finding, ...]
    verdict: str
    share: float


ANSWER = Answer(
    findings=(
        Finding(model="zoo:a", sentence="zoo:a is slow.", interval=(1.0, 2.0), samples_seconds=(0.1, 0.3, 0.2)),
        Finding(model="zoo:b", sentence="zoo:b is <fast>.", interval=(1.0, 3.0), samples_seconds=(0.5,)),
    ),
    verdict="All are bound by data.",
    share=0.25,
)


DROPPED = ModelDropped(
    model="zoo:a", stamp="", num_parameters=7, num_items=9, score=0.5, chance=0.1, top=1, seconds=0.002
)


def write_some_run(path: Path) -> Path:
    settings = {"data": "fashion", "models": ["zoo:a", "zoo:b"], "repeat": 3, "quick": True, "run": "x", "seed": None}
    with open_run(path, verb="somethingnew", at=AT, settings=settings, identity={}) as run:
        run.append(RunStarted(at=AT, device="cpu", machine=MACHINE))
        run.append(DROPPED)
        run.append(Failure(model="zoo:c", phase="forward", error="out of memory"))
        run.write_answer(ANSWER, headline="bound by data")
    return path


def test_an_unknown_verb_gets_a_page_with_its_words_numbers_failures_machine_and_command(tmp_path: Path) -> None:
    page = build_page([read_run(write_some_run(tmp_path / "run"))])
    assert plain_text(page.answer) == "Bound by data."
    assert [plain_text(each) for each in page.sentences] == [
        "All are bound by data.",
        "zoo:a is slow.",
        "zoo:b is <fast>.",
        "1 failure: what and why stands under What did not work.",
    ]
    assert [section.name for section in page.sections] == ["answer", "records", "failures", "machine", "commands"]
    text = render_page(page, sources="a test")
    shown = re.sub(r"</?span[^>]*>|<wbr>", "", text)  # options are never broken into lines, lists are after commas
    assert "hound somethingnew fashion --models zoo:a,zoo:b --repeat 3 --quick</code>" in shown
    assert "zoo:b is &lt;fast&gt;." in text


def test_a_page_says_that_earlier_starts_had_another_machine_or_other_versions(tmp_path: Path) -> None:
    path = write_some_run(tmp_path / "run")
    newer = msgspec.structs.replace(MACHINE, versions={**MACHINE.versions, "torch": "99.0"})
    for machine in (MACHINE, newer):
        with open_run(path, verb="somethingnew", at=AT, settings=read_run(path).settings, identity={}) as run:
            run.append(RunStarted(at=AT, device="cpu", machine=machine))
    machine = next(each for each in build_page([read_run(path)]).sections if each.name == "machine")
    assert machine.lead.endswith(" Earlier starts ran on 1 other machine or with other versions.")


def test_what_a_later_start_has_done_is_no_failure_of_the_run_any_more(tmp_path: Path) -> None:
    path = write_some_run(tmp_path / "run")
    pair = PairFailed(item_kind="raw", for_model="zoo:a", batch=8, workers=2, phase="load", error="killed")

    def go_on(*records: Record) -> list[tuple[str, str, str]]:
        with open_run(path, verb="somethingnew", at=AT, settings=read_run(path).settings, identity={}) as run:
            run.append(RunStarted(at=AT, device="cpu", machine=MACHINE))
            for record in records:
                run.append(record)
        return find_failures(read_run(path))

    failed = ("zoo:c", "forward", "out of memory")
    assert go_on(pair) == [failed, ("zoo:a, 8 x 2", "load", "killed")], (
        "a start that has not come to zoo:c says nothing of it"
    )
    again = Failure(model="zoo:c", phase="score", error="too few items")
    assert go_on(again) == [("zoo:c", "score", "too few items")]
    assert go_on(msgspec.structs.replace(DROPPED, model="zoo:c")) == []
    assert "failures" not in [section.name for section in build_page([read_run(path)]).sections]


def test_a_page_says_what_was_taken_over_from_hound_loader_and_does_not_count_it_as_measured(tmp_path: Path) -> None:
    used = LoaderUsed(batch=16, workers=None, prefetch=None, origin="remembered", found_for="photos")
    path = write_some_run(tmp_path / "run")
    with open_run(path, verb="somethingnew", at=AT, settings=read_run(path).settings, identity={}) as run:
        run.append(used)
    sections = {section.name: section for section in build_page([read_run(path)]).sections}
    assert sections["machine"].lead.endswith(
        " Computed in batches of up to 16: as `hound loader` found here for photos."
    )
    assert [block.caption for block in sections["records"].blocks if isinstance(block, Table)] == [
        "1 record of kind dropped"
    ]


def test_an_answers_lists_become_tables_without_the_sentences_above(tmp_path: Path) -> None:
    page = build_page([read_run(write_some_run(tmp_path / "run"))])
    table = page.sections[0].blocks[0]
    assert isinstance(table, Table)
    assert table.caption == "Findings. The same in all rows: interval low 1."
    assert [column.name for column in table.columns] == [
        "model",
        "interval high",
        "median samples seconds",
        "samples of samples seconds",
    ]
    assert [cell.text for cell in table.rows[0]] == ["zoo:a", "2", "200 ms".replace(" ", "\N{NO-BREAK SPACE}"), "3"]
    assert table.rows[0][2].sort_by == 0.2


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    path = write_some_run(tmp_path / "run")
    (path / "answer.json").unlink()
    page = build_page([read_run(path)])
    assert plain_text(page.answer) == "This run is not finished."
    assert page.is_running


def test_runs_of_different_verbs_stand_side_by_side(tmp_path: Path) -> None:
    paths = [write_some_run(tmp_path / name) for name in ("one", "two")]
    page = build_page([read_run(path) for path in paths])
    assert plain_text(page.answer) == "2 runs side by side."
    assert [section.title for section in page.sections] == ["Side by side", "one", "two"]
    assert page.sections[1].is_folded


def test_samples_are_kept_for_export_and_summed_up_for_tables() -> None:
    record = {
        "kind": "x",
        "a": {"b": 1},
        "seconds": [3.0, 1.0, 2.0],
        "phases": [{"phase": "forward", "seconds": [1, 2]}],
    }
    assert flat_row(record) == {"a.b": 1, "median.seconds": 2.0, "num.seconds": 3, "forward.seconds": 3.0}
    assert flat_row(record, keep_samples=True)["seconds"] == "[3.0, 1.0, 2.0]"


def test_only_whole_sentences_are_found_and_conclusions_first() -> None:
    answer = {
        "laws": [{"sentence": "It grows."}, {"verdict": "does not hold"}],
        "conclusions": [{"sentence": "It holds."}],
    }
    assert find_sentences(answer) == ["It holds.", "It grows."]


def test_a_column_that_repeats_another_is_left_out() -> None:
    table = flat_table("t", [{"model": "a", "inner.model": "a", "n": 1}, {"model": "b", "inner.model": "b", "n": 2}])
    assert table is not None
    assert [column.name for column in table.columns] == ["model", "n"]


def test_records_that_cannot_be_read_are_told_of_first(tmp_path: Path) -> None:
    path = write_some_run(tmp_path / "run")
    with (path / "records.jsonl").open("ab") as file:
        file.write(b'{"crc":"00000000","record":{"kind":"of another version"}}\n{"half a line')
    page = build_page([read_run(path)])
    assert plain_text(page.sentences[0]) == (
        "1 record cannot be read: damaged, or written by another version of modelhound. This page does without."
    )
