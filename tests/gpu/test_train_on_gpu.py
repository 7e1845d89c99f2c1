"""Fine-tuning on a GPU: the same losses as on a CPU, and every second accounted for without waiting for the device."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device that torch can use"),
]


def test_losses_are_those_of_a_cpu(tmp_path: Path) -> None:
    from modelhound.training import fine_tune
    from train_things import brightness, quick, tiny_network

    dataset = brightness(tmp_path / "photos")
    runs = [
        fine_tune(tiny_network(), dataset, quick(precision="fp32", augment="strong"), device=device)
        for device in ("cpu", "cuda:0")
    ]
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=2e-2)


@pytest.mark.parametrize("mode", ["full", "head", "cached"])
def test_the_phases_add_up_on_a_gpu(mode: str, tmp_path: Path) -> None:
    from modelhound.features import build_network
    from modelhound.models import ModelRef
    from modelhound.settings import PLAIN
    from modelhound.training import Delays, fine_tune
    from train_things import brightness, quick

    dataset = brightness(tmp_path / "photos", per_class=100)
    network = build_network(ModelRef("timm", "resnet18"), None, PLAIN, seed=0)
    delays = Delays(loading_seconds=0.05 if mode != "cached" else 0.0)
    recipe = quick(mode=mode, epochs=2, batch=16, rate=1e-3)
    trained = fine_tune(network, dataset, recipe, device="cuda:0", delays=delays)
    seconds = {each.phase: each.total for each in trained.phases}
    assert trained.precision == "bf16"
    assert sum(seconds.values()) == pytest.approx(trained.wall_seconds, rel=0.02)
    if mode == "full":
        assert seconds["wait for data"] > 0.5 * trained.num_steps * 0.05
        assert seconds["forward"] > 0
        assert seconds["backward"] > seconds["optimiser"] > 0


def test_a_slow_loader_and_a_slow_model_are_named_on_a_gpu(tmp_path: Path) -> None:
    from modelhound.analysis.bounds import judge_blocks
    from modelhound.training import Delays, set_up
    from modelhound.training.intervening import intervene
    from train_things import brightness, quick, tiny_network

    dataset = brightness(tmp_path / "photos")
    items, held_out = dataset.select(range(0, 60, 2)), dataset.select(range(1, 60, 2))
    for delays, bound in ((Delays(loading_seconds=0.03), "data-bound"), (Delays(model_seconds=0.05), "model-bound")):
        bench = set_up(tiny_network(), items, held_out, quick(batch=4), device="cuda:0", delays=delays)
        measured = intervene(bench, budget_seconds=3.0)
        assert {block.condition for block in measured.blocks} == {"live", "host batches", "device batches"}
        assert judge_blocks(measured).bound == bound


def test_the_hound_trains_on_a_gpu(tmp_path: Path) -> None:
    import modelhound

    result = modelhound.train(
        "digits", "zoo:resnet-shapes", limit=100, epochs=2, device="cuda", trace=2, run=tmp_path / "run"
    )
    assert result.trained[0].precision == "bf16"
    assert any(each.device_seconds > 0 for each in result.operators[0].operators)
    assert result.answer.verdicts[0].gains
