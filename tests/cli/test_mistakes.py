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
        *(
            (
                f"{verb} --device gpu",
                r"cannot use --device 'gpu': expected auto, cpu, cuda or cuda:N, did you mean cuda\?",
            )
            for verb in ("search x", "train x", "loader x", "profile x", "breakeven x", "latency")  # before the data
        ),
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
        *(
            (
                f"{asked} {option}",
                rf"cannot use {option} alone: expected a value behind it, see `hound {asked.split()[0]} --help`",
            )
            for asked, option in (
                ("report", "--charts"),
                ("report", "--export"),
                ("report", "--mlflow"),
                ("latency", "--batch"),
                ("latency --json", "--precision"),
                ("latency", "--compare"),
                ("search digits", "--scorers"),
                ("search digits", "--charts"),
                ("loader digits", "--workers"),
                ("train digits --model zoo:resnet-shapes", "--ranks"),
                ("breakeven digits", "--sizes"),
                ("profile digits", "--models"),
                ("prepare digits out", "--models"),
                ("models", "--where"),
            )
        ),
        (
            "report --charts=",
            r"cannot use --charts with nothing behind it: expected a value, see `hound report --help`",
        ),
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
        ("latency --precision fp8", r"cannot use --precision 'fp8': expected one of auto, fp32, .*bf16"),
        ("latency --precision auto,bf16", r"cannot use --precision 'auto,bf16': expected auto alone, or some of fp32"),
        ("latency --memory 4", r"cannot use --memory '4': expected a unit .* 4 bytes; did you mean 4GB\?"),
        ("latency --on mars", r"cannot use --on 'mars': expected local, ray or ray://HOST:PORT"),
        ("latency --models zoo:resnet-shapes --compare nowhere", r"cannot read run 'nowhere': expected a run folder"),
        (
            "latency --models zoo:resnet-shapes --sequence 16,32",
            r"cannot use --sequence 16,32: expected a model of texts",
        ),
        ("loader digits --kind fast", r"cannot use --kind 'fast': expected one of auto, raw, preprocessed"),
        (
            "loader digits --batch ,",
            r"cannot use an empty --batch: expected auto alone, or whole numbers from 1 to .*, such as --batch 32,64",
        ),
        ("loader digits --batch 0,32", r"cannot use --batch '0': expected auto alone, or whole numbers from 1 to"),
        ("loader digits --batch auto,32", r"cannot use --batch 'auto': expected auto alone, or whole numbers"),
        (
            "loader digits --out .",
            r"cannot write --out '\.': expected a file, this is a folder; use --out 'loader\.json'",
        ),
        ("loader digits --length 99999999999", r"--length 99999999999: expected a whole number below 4294967296"),
        ("train digits --rate 0", r"cannot use --rate 0\.0: expected a number above 0 and up to 100"),
        (
            "train digits --slurm --ranks 4 --gpus 1",
            r"cannot run 4 ranks with --nodes 1 and --gpus 1: expected one GPU",
        ),
        (
            "train digits --test new",
            r"cannot use --test with 'digits': .* or leave it out: CIFAR's own layout;",
        ),
        ("search digits --split new", r"cannot use --split new with 'digits': expected data of one of these forms"),
        (
            "loader digits --task regression",
            r"cannot use --task regression with 'digits': expected data of one of these",
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


@pytest.mark.parametrize(
    ("typed", "meant"), [("help", "--help"), ("help runs", "runs --help"), ("-V", "--version"), ("-h", "--help")]
)
def test_what_people_type_for_help_and_version_is_understood(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for argv in (typed, meant):
        assert cli.run(argv.split()) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
