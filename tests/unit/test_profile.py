"""Parts and joint models compute what the whole computes, from the tensors of their files alone."""

import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from modelhound.data import Dataset, open_dataset
from modelhound.errors import ModelError, RequestError
from modelhound.models import find_models
from modelhound.profiling import jobs, staging
from modelhound.profiling.benches import Bench, prepare_bench
from modelhound.profiling.configurations import Configuration, configurations_of
from modelhound.profiling.jobs import Stage, profile_configuration
from modelhound.profiling.rounds import work_folder
from modelhound.profiling.staging import open_stage
from modelhound.profiling.weight_files import forget, perturbed, read_all, read_some, write_tensors
from modelhound.records import ConfigurationProfiled
from modelhound.settings import LastLayers, LoaderSettings, ProfileSettings
from tiny_encoders import write_encoder

IMAGES = ("zoo:resnet-shapes", "zoo:vit-rotation", "zoo:mobilenet-rotation")


def test_work_of_a_process_that_was_killed_is_removed_and_that_of_a_living_one_is_not() -> None:
    work = """
from modelhound.profiling.rounds import work_folder
with work_folder() as folder:
    print(folder, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        with work_folder() as folder:
            assert left.is_dir()
        assert not folder.exists()
        other.kill()
    assert left.is_dir()
    with work_folder():
        assert not left.exists()


def make_settings(**options: object) -> ProfileSettings:
    usual = {"batches": 3, "warmup": 1, "batch": "4", "weights": "pretrained", "parts": "full,50%,1", "joint": "50%"}
    usual |= {"classes": "3", "scorers": "ridge", "repeats": 1}
    return ProfileSettings("digits", **{**usual, **options})  # type: ignore[arg-type]


def make_bench(model: str, tmp_path: Path, settings: ProfileSettings, heads: tuple[str, ...] = ()) -> Bench:
    (found,) = find_models([model])
    return prepare_bench(found, settings, tmp_path, head_models=find_models(heads) if heads else ())


def run(
    bench: Bench, dataset: Dataset, settings: ProfileSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, list[torch.Tensor]], dict[str, ConfigurationProfiled]]:
    """The features of every configuration, and its record."""
    features: dict[str, list[torch.Tensor]] = {}
    plain = jobs._run_batches

    def keep(configuration: Configuration, *others: object) -> list[torch.Tensor]:
        features[configuration.name] = plain(configuration, *others)  # type: ignore[arg-type]
        return features[configuration.name]

    monkeypatch.setattr(jobs, "_run_batches", keep)
    found, missing = configurations_of(bench, settings)
    assert missing == []
    with open_stage(bench, dataset, settings, found, stamp="", device="cpu", folder=tmp_path) as stage:
        records = {each.name: profile_configuration(each, stage) for each in found}
        assert any(tmp_path.rglob("before-*.safetensors"))
    assert not any(tmp_path.rglob("before-*.safetensors"))
    return features, records


@pytest.mark.parametrize("model", IMAGES)
def test_last_layers_fed_with_stored_outputs_give_the_features_of_the_whole(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    features, records = run(
        make_bench(model, tmp_path, settings), open_dataset("digits", limit=24), settings, tmp_path, monkeypatch
    )
    (whole,) = features["full"]
    for part in ("last 50%", "last 1"):
        assert torch.equal(features[part][0], whole)
    assert torch.equal(features["joint 50%"][0], whole)
    assert torch.equal(features["joint 50%"][1], features["apart 2"][0])
    assert not torch.equal(features["joint 50%"][1], whole)
    assert records["last 1"].weight_bytes < records["last 50%"].weight_bytes < records["full"].weight_bytes
    assert records["last 1"].flops_per_item < records["full"].flops_per_item < records["joint 50%"].flops_per_item


def test_last_layers_of_a_text_encoder_give_the_features_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(parts="full,2,1", joint="1")
    bench = make_bench(f"file:{write_encoder(tmp_path / 'bert')}", tmp_path, settings)
    features, records = run(bench, open_dataset("sms", limit=24), settings, tmp_path, monkeypatch)
    assert len(bench.layers) == 3
    for part in ("last 2", "last 1"):
        assert torch.equal(features[part][0], features["full"][0])
    assert torch.equal(features["joint 1"][1], features["apart 2"][0])
    assert records["last 1"].input_bytes_per_item > 0


def test_every_phase_is_sampled_once_per_batch_and_the_sum_is_never_more_than_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(classes="7,3", scorers="sgd_probe,ridge")
    bench = make_bench(IMAGES[0], tmp_path, settings)
    _, records = run(bench, open_dataset("digits", limit=24), settings, tmp_path, monkeypatch)
    for record in records.values():
        counts = {each.phase: len(each.seconds) for each in record.phases}
        assert counts == {
            "read weights": 1,
            "build model": 1,
            "weights to device": 1,
            "wait for data": 4,  # the last is the end of loading
            "data to device": 3,
            "forward": 3,
            "score": 1,
        }
        assert sum(each.total for each in record.phases) <= record.wall_seconds
        assert len(record.warm_read_seconds) == settings.num_repeats()
        assert len(record.cold_read_seconds) == (settings.num_repeats() if record.cold else 0)
        assert len(record.load_seconds) == (0 if record.form == "part" else 4)  # loading alone, timed once for all
        assert record.form == "part" or record.load_seconds == records["full"].load_seconds
        kinds = [(each.scorer, each.num_classes, each.num_items) for each in record.scorings]
        assert kinds == [
            *(("sgd_probe", 7, count) for count in (8, 12)),
            ("sgd_probe", 3, 12),
            ("ridge", 7, 12),
            ("ridge", 3, 12),
        ]
    assert len(records["full"].usual_build_seconds) == 1


def test_stored_outputs_are_dropped_from_the_page_cache_before_every_job_that_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(parts="full,1", joint="none", batches=2)
    bench = make_bench(IMAGES[0], tmp_path, settings)
    (full, part), _ = configurations_of(bench, settings)
    dropped: list[str] = []

    def note(paths: Iterable[Path]) -> bool:
        dropped.extend(path.name for path in paths)
        return True

    with open_stage(
        bench, open_dataset("digits", limit=24), settings, [full, part], stamp="", device="cpu", folder=tmp_path
    ) as stage:
        monkeypatch.setattr(jobs, "forget", note)
        scorings = profile_configuration(full, stage).scorings
        assert not any(name.startswith("before-") for name in dropped)
        record = profile_configuration(part, stage, scorings=scorings)
        profile_configuration(part, stage, scorings=scorings)
    assert len([name for name in dropped if name.startswith("before-")]) == 4  # two batches, twice
    assert record.scorings is scorings  # features of all configurations are alike: they are scored once


def test_heads_of_another_model_with_the_same_trunk_can_be_joined(tmp_path: Path) -> None:
    settings = make_settings(models="zoo:resnet-shapes", heads="zoo:resnet-shapes-glyphs", parts="full", joint="2")
    bench = make_bench("zoo:resnet-shapes", tmp_path, settings, ("zoo:resnet-shapes-glyphs",))
    found, _ = configurations_of(bench, settings)
    assert [each.name for each in found] == ["full", "joint 2", "apart 2"]


def test_a_head_longer_than_the_model_is_missing_and_shorter_ones_of_another_model_are_joined(tmp_path: Path) -> None:
    settings = make_settings(models="zoo:resnet-shapes", heads="zoo:resnet-shapes-glyphs", parts="full", joint="2,40")
    bench = make_bench("zoo:resnet-shapes", tmp_path, settings, ("zoo:resnet-shapes-glyphs",))
    found, missing = configurations_of(bench, settings)
    assert [each.name for each in found] == ["full", "joint 2", "apart 2"]
    assert [name for name, _ in missing] == ["joint 40"]


def test_models_of_different_trunks_are_not_joined_and_it_is_said_where_they_differ(tmp_path: Path) -> None:
    settings = make_settings(models="zoo:resnet-shapes", heads="zoo:resnet-glyphs", joint="50%")
    with pytest.raises(RequestError, match="cannot join zoo:resnet-glyphs to zoo:resnet-shapes: expected"):
        make_bench("zoo:resnet-shapes", tmp_path, settings, ("zoo:resnet-glyphs",))
    settings = make_settings(models="zoo:resnet-shapes", heads="zoo:resnet-shapes-glyphs", joint="1")
    with pytest.raises(
        RequestError, match=r"cannot join zoo:vit-rotation to zoo:resnet-shapes: expected models of one"
    ):
        make_bench("zoo:resnet-shapes", tmp_path, settings, ("zoo:vit-rotation",))
    with pytest.raises(RequestError, match=r"the same first \d+ of \d+ layers, their weights differ from layer \d+ on"):
        make_bench("zoo:resnet-shapes", tmp_path, settings, ("zoo:resnet-shapes-glyphs",))


def test_a_part_that_a_model_does_not_have_is_missing_with_the_number_of_its_layers(tmp_path: Path) -> None:
    settings = make_settings(parts="full,40", joint="none")
    bench = make_bench("zoo:vit-rotation", tmp_path, settings)
    found, missing = configurations_of(bench, settings)
    assert [each.name for each in found] == ["full"]
    ((name, error),) = missing
    assert name == "last 40"
    assert isinstance(error, ModelError)
    assert f"expected at most {len(bench.layers)}" in str(error)


def test_pooling_and_normalisation_are_no_layers_of_their_own(tmp_path: Path) -> None:
    bench = make_bench("zoo:resnet-shapes", tmp_path, make_settings())
    anatomy, last = bench.layers.anatomy, bench.layers.start_of(LastLayers("1"))
    assert bench.layers.flops_per_item(last, len(anatomy.parts)) > 0
    assert last < len(anatomy.parts) - 1  # pooling stands behind it
    assert bench.layers.start_of(LastLayers("100%")) == 0


def test_no_room_for_stored_outputs_is_said_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    bench = make_bench(IMAGES[0], tmp_path, settings)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 100))
    found, _ = configurations_of(bench, settings)
    with pytest.raises(
        RequestError, match=r"cannot store the intermediate outputs of zoo:resnet-shapes.*fewer --batches"
    ):
        open_stage(bench, open_dataset("digits", limit=24), settings, found, stamp="", device="cpu", folder=tmp_path)
    assert not any(tmp_path.rglob("before-*.safetensors"))
    with pytest.raises(RequestError, match="cannot write the weights of"):
        make_bench(IMAGES[1], tmp_path, settings)


def test_stored_outputs_are_gone_when_loading_by_itself_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other models go on, and need the room."""

    def fail(stage: Stage) -> tuple[float, ...]:
        assert any(tmp_path.rglob("before-*.safetensors"))
        raise MemoryError

    monkeypatch.setattr(staging, "time_loading", fail)
    settings = make_settings(parts="full,1", joint="none")
    bench = make_bench(IMAGES[0], tmp_path, settings)
    found, _ = configurations_of(bench, settings)
    with pytest.raises(MemoryError):
        open_stage(bench, open_dataset("digits", limit=24), settings, found, stamp="", device="cpu", folder=tmp_path)
    assert not any(tmp_path.rglob("before-*.safetensors"))


def test_the_largest_batch_is_chosen_and_said(tmp_path: Path) -> None:
    settings = make_settings(batch="largest", parts="full", joint="none", batches=2)
    bench = make_bench(IMAGES[0], tmp_path, settings)
    found, _ = configurations_of(bench, settings)
    dataset = open_dataset("digits", limit=24)
    with open_stage(bench, dataset, settings, found, stamp="", device="cpu", folder=tmp_path) as stage:
        assert isinstance(stage, Stage)
        assert stage.workload.batch == 24
        assert "largest that fit" in stage.workload.notes[0]
        assert "1 batches of 24 were run instead of 2; none was repeated" in stage.workload.notes[1]


def test_a_loader_file_says_how_far_ahead_to_load_and_pins_only_for_a_gpu(tmp_path: Path) -> None:
    settings = make_settings(batch="4", parts="full", joint="none", batches=2)
    bench = make_bench(IMAGES[0], tmp_path, settings)
    found, _ = configurations_of(bench, settings)
    loader = LoaderSettings(batch=4, workers=1, prefetch=5, pin=True, device="cuda:0")
    dataset = open_dataset("digits", limit=24)
    with open_stage(bench, dataset, settings, found, stamp="", device="cpu", folder=tmp_path, loader=loader) as stage:
        assert (stage.prefetch, stage.pin) == (5, None)


def test_tensors_come_back_from_their_file_under_every_name_and_only_those_asked_for(tmp_path: Path) -> None:
    tied, other = torch.randn(3, 4), torch.arange(5)
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"in.weight": tied, "out.weight": tied, "positions": other})
    assert path.stat().st_size < 2 * tied.nbytes + 400
    found = read_some(path, ["out.weight", "positions"])
    assert set(found) == {"out.weight", "positions"}
    assert torch.equal(found["out.weight"], tied)
    everything = read_all(path)
    assert everything["in.weight"] is everything["out.weight"]
    kept = torch.randn(2)
    changed = perturbed({"a": tied, "b": tied, "c": kept, "d": other}, {"b", "d"}, seed=1)
    assert changed["a"] is changed["b"]
    assert not torch.equal(changed["a"], tied)
    assert changed["c"] is kept
    assert torch.equal(changed["d"], other)


def test_a_file_dropped_from_the_page_cache_still_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"a": torch.arange(100_000)})
    forget([path])  # whether it could depends on the file system
    assert torch.equal(read_all(path)["a"], torch.arange(100_000))
    assert forget([tmp_path / "gone"]) is False


@pytest.mark.parametrize(("text", "count"), [("full", 10), ("50%", 5), ("25%", 2), ("3", 3), ("1%", 1), ("100%", 10)])
def test_last_layers_by_share_and_by_number(text: str, count: int) -> None:
    assert LastLayers(text).count(10) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": "half"}, "cannot run 'half' of a model: expected full, a share such as 50% or a number"),
        ({"parts": "0"}, "cannot run '0'"),
        ({"parts": "120%"}, "cannot run '120%'"),
        ({"joint": "full"}, "cannot use --joint full"),
        ({"parts": (), "joint": "none"}, "cannot profile nothing"),
        ({"heads": "1"}, "expected one number from 2 to 64"),
        ({"heads": "2,3"}, "expected one number from 2 to 64"),
        ({"heads": "zoo:resnet-shapes"}, "cannot join"),
        ({"classes": "1"}, "--classes '1': expected whole numbers from 2 to 100000"),
        ({"classes": "1000000"}, "--classes '1000000': expected whole numbers from 2 to 100000"),
        ({"classes": ()}, "empty --classes"),
        ({"items": "few"}, "--items 'few'"),
        ({"batch": "huge"}, "expected a number, auto or largest"),
        ({"batches": 1}, "--batches 1"),
        ({"warmup": 3}, "--warmup 3 of 3 batches"),
        ({"scorers": "guess"}, "--scorers 'guess'"),
        ({"device": ()}, "empty --device"),
    ],
)
def test_bad_requests_say_what_is_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_settings(**{"models": ("zoo:a", "zoo:b"), **options})
