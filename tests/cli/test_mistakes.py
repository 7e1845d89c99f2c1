"""What a person is told who mistypes, and that what they may guess is understood."""

import re

import pytest

from modelhound import cli


def complaint(argv: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(argv.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return " ".join(said.err.split())


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("serach digits", r"cannot run 'serach': expected one of search, .*train.*, did you mean search\?"),
        ("search", r"cannot run `hound search` without DATA: expected digits, .* see `hound search --help`"),
        ("prepare digits", r"cannot run `hound prepare` without OUT: expected the folder to write"),
        ("search digits --batch-size 4", r"cannot use --batch-size: .*`hound search`, did you mean --batch\?"),
        ("search digits --num-workers=4", r"did you mean --workers\?"),
        ("search digits --gpu", r"did you mean --device cuda\?"),
        ("train digits --lr 0.1", r"did you mean --rate\?"),
        ("train digits --optimizer sgd", r"did you mean --optimiser\?"),
        ("doctor --gpu", r"cannot use --gpu: expected an option of `hound doctor`, see `hound doctor --help`"),
        ("train digits --explain", r"cannot use --explain: .*`hound train`, only search and latency have it"),
        ("breakeven digits --items 100", r"`hound breakeven`, only profile has it"),
        ("loader digits --items 100", r"`hound loader`, only profile has it"),
        ("train digits --charts drawn", r"cannot use --charts 'drawn': expected png, svg or both"),
        ("latency --image x", r"cannot use --image 'x': .* such as --image 64,224"),
        ("latency --sequence x", r"such as --sequence 16,128"),
        ("search digits --scorers rigde", r"cannot use --scorers 'rigde': expected one of .*, did you mean ridge\?"),
        ("search digits --limit", r"cannot use --limit alone: expected a value behind it"),
        ("search digits --limit ten", r"cannot use --limit 'ten': expected a whole number"),
        (
            "search digits --limit 60.5",
            r"cannot use --limit '60\.5': expected a whole number, see `hound search --help`",
        ),
        ("train digits --epochs 1.5", r"cannot use --epochs '1\.5': expected a whole number"),
        ("profile digits --batches 0x", r"cannot use --batches '0x': expected a whole number"),
        ("search digits --precision bf61", r"cannot use --precision 'bf61': expected one of .*, did you mean bf16\?"),
        (
            "search digits zoo:resnet-shapes",
            r"cannot use 'zoo:resnet-shapes' here: .*did you mean --models zoo:resnet-sh",
        ),
        ("latency digits", r"cannot use 'digits' here: .* see `hound latency --help`"),
        (f"search {'a' * 300}.csv", r"cannot read 'a+\.csv': .* but file name too long; check the path"),
        (f"runs {'a' * 300}", r"cannot use 'a+…a+': expected a path that a disk can hold, shorten it"),
        (
            f"search digits --models py:{'a' * 300}.py:make",
            r"cannot use 'a+…a+\.py': expected a path that a disk can hold",
        ),
    ],
)
def test_a_mistake_is_answered_with_what_was_expected(
    argv: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(expected, complaint(argv, capsys))


@pytest.mark.parametrize(
    ("asked", "names", "expected"),
    [
        ("train digits {} ,", ("--model", "--models"), "cannot train without a model"),
        ("search digits {} ,", ("--models", "--model"), "expected at least one reference"),
        ("latency {} x", ("--sequence", "--tokens"), "cannot use --sequence 'x'"),
    ],
)
def test_what_other_verbs_call_differently_is_understood(
    asked: str, names: tuple[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {complaint(asked.format(name), capsys) for name in names}
    assert len(told) == 1
    assert expected in told.pop()


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_help_is_made_of_paragraphs(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.run([verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"Usage: hound {verb}" in said
    for box in said.split("╭─ ")[1:]:
        lines = box.splitlines()[1:]
        options = [re.match(r"(│ (?:\*  |   )?(?:--|[A-Z]).*? {2,})[^│ ].*│$", line) for line in lines]
        begin = max(len(found[1]) for found in options if found)
        # A second line of a docstring would begin farther to the right than its first.
        assert [line for line in lines if re.match(rf"│ {{{begin},}}[^│ ]", line)] == []


@pytest.mark.parametrize("verb", ["search", "loader", "train", "profile", "breakeven", "prepare"])
def test_verbs_that_take_data_ask_for_it_in_the_same_words(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    def box(name: str) -> list[str]:
        assert cli.run([name, "--help"]) == 0
        boxes = capsys.readouterr().out.split("╭─ ")
        text = " ".join(next(box for box in boxes if box.startswith("Data ")).replace("│", " ").split())
        return [text.partition(f" {option} ")[2][:60] for option in ("--columns", "--task", "--split", "--limit")]

    assert box(verb) == box("search")


@pytest.mark.parametrize("verb", ["latency", "loader", "train", "profile", "breakeven"])
def test_verbs_that_take_models_say_the_same_of_them(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    def said(name: str) -> list[str]:
        assert cli.run([name, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        return [
            re.split(r" --|╰", text.partition(f" {option} STR")[2])[0].strip() for option in ("--arch", "--allow-code")
        ]

    assert all(len(each) > 40 for each in said("search"))
    assert said(verb) == said("search")
