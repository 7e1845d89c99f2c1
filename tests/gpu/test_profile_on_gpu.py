"""Profiles and comparisons on a GPU: last layers see what the whole network sees, and phases add up."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device that torch can use"),
]


def test_last_layers_and_joint_models_give_the_features_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelhound.data import open_dataset
    from modelhound.models import find_models
    from modelhound.profiling import jobs
    from modelhound.profiling.benches import prepare_bench
    from modelhound.profiling.configurations import Configuration, configurations_of
    from modelhound.profiling.jobs import profile_configuration
    from modelhound.profiling.staging import open_stage
    from modelhound.settings import ProfileSettings

    features: dict[str, list[torch.Tensor]] = {}
    plain = jobs._run_batches

    def keep(configuration: Configuration, *others: object) -> list[torch.Tensor]:
        features[configuration.name] = plain(configuration, *others)  # type: ignore[arg-type]
        return features[configuration.name]

    monkeypatch.setattr(jobs, "_run_batches", keep)
    settings = ProfileSettings(
        "digits", weights="pretrained", batches=3, warmup=1, batch="8", parts="full,50%,1", joint="50%", repeats=1
    )
    for name in ("zoo:resnet-shapes", "zoo:vit-rotation", "zoo:mobilenet-rotation"):
        bench = prepare_bench(find_models([name])[0], settings, tmp_path)
        found, _ = configurations_of(bench, settings)
        dataset = open_dataset("digits", limit=24)
        with open_stage(bench, dataset, settings, found, stamp="", device="cuda:0", folder=tmp_path) as stage:
            records = {each.name: profile_configuration(each, stage) for each in found}
        (whole,) = features["full"]
        for part in ("last 50%", "last 1"):
            torch.testing.assert_close(features[part][0], whole, rtol=0.02, atol=0.02)
        torch.testing.assert_close(features["joint 50%"][1], features["apart 2"][0], rtol=0.02, atol=0.02)
        assert {record.precision for record in records.values()} == {"bf16"}


def test_the_phases_of_a_profile_add_up_on_a_gpu(tmp_path: Path) -> None:
    from modelhound.settings import ProfileSettings
    from modelhound.verbs.profile import run_profile

    result = run_profile(
        ProfileSettings(
            "digits",
            models=("timm:resnet18", "timm:mobilenetv3_large_100"),
            device=("cuda", "cpu"),
            batches=6,
            warmup=2,
            batch="16",
            parts="full,3",
            joint="3",
            run=tmp_path / "run",
        )
    )
    assert not result.failures
    assert {each.device for each in result.profiles} == {"cuda:0", "cpu"}
    assert result.findings.unaccounted < 0.02
    short = [each for each in result.profiles if each.peak_memory_bytes <= each.weight_bytes / 2]  # bf16 is half
    assert [(each.configuration, each.device, each.peak_memory_bytes, each.weight_bytes) for each in short] == []


def test_the_largest_batch_that_fits_is_found_on_a_gpu(tmp_path: Path) -> None:
    from modelhound.settings import ProfileSettings
    from modelhound.verbs.profile import run_profile

    result = run_profile(
        ProfileSettings(
            "digits",
            models=("zoo:resnet-shapes",),
            device=("cuda",),
            batches=2,
            batch="largest",
            parts="full",
            joint="none",
            run=tmp_path / "run",
        )
    )
    assert any("largest that fit" in note for note in result.notes)
    assert result.profiles[0].batch >= 256


def test_fine_tuning_is_compared_with_searching_on_a_gpu(tmp_path: Path) -> None:
    from modelhound.settings import BreakevenSettings
    from modelhound.verbs.breakeven import run_breakeven

    result = run_breakeven(
        BreakevenSettings(
            "digits",
            models=("zoo:resnet-shapes",),
            sizes=("60",),
            epochs=2,
            counts=("1", "2"),
            device="cuda",
            run=tmp_path / "run",
        )
    )
    assert not result.failures
    assert {each.mode for each in result.trainings} == {"full", "head", "cached"}
    assert {each.way for each in result.findings.ways} == {"plain", "engine"}
    assert all(each.num_models >= 0 for each in result.findings.counts)
