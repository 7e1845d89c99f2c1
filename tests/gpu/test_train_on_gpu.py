"""Fine-tuning on a GPU: the same losses as on a CPU, and every second accounted for without waiting for the device."""

import itertools
from pathlib import Path
from typing import Any

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
    from modelhound.training import Delays, train
    from train_things import bench_of, brightness, quick

    dataset = brightness(tmp_path / "photos", per_class=100)
    network = build_network(ModelRef("timm", "resnet18"), None, PLAIN, seed=0)
    delays = Delays(loading_seconds=0.05 if mode != "cached" else 0.0)
    recipe = quick(mode=mode, epochs=2, batch=16, rate=1e-3)
    trained = train(bench_of(network, dataset, recipe, device="cuda:0", delays=delays))
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
    assert not result.failures, result.failures
    assert result.trained[0].precision == "bf16"
    assert any(each.device_seconds > 0 for each in result.operators[0].operators)
    assert result.answer.verdicts[0].gains


@pytest.mark.filterwarnings("ignore")  # the compiler has much to say
def test_compiling_changes_no_loss(tmp_path: Path) -> None:
    from modelhound.training import fine_tune
    from train_things import brightness, quick, tiny_network

    dataset = brightness(tmp_path / "photos")
    plain, compiled = (
        fine_tune(tiny_network(), dataset, quick(precision="fp32", compile=each, epochs=2), device="cuda:0")
        for each in (False, True)
    )
    assert compiled.losses == pytest.approx(plain.losses, rel=2e-2)


def test_a_run_stopped_on_a_gpu_goes_on_and_ends_with_the_same_losses(tmp_path: Path) -> None:
    from modelhound.records import Progress
    from modelhound.training import train
    from train_things import bench_of, brightness, quick, tiny_network

    dataset, recipe = brightness(tmp_path / "photos"), quick(precision="fp32")
    whole = train(bench_of(tiny_network(), dataset, recipe, device="cuda:0"), checkpoints=tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.done >= 14:  # in the third epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(bench_of(tiny_network(), dataset, recipe, device="cuda:0"), checkpoints=tmp_path / "kept", watch=stop)
    resumed = train(bench_of(tiny_network(), dataset, recipe, device="cuda:0"), checkpoints=tmp_path / "kept")
    assert 0 < resumed.num_steps < whole.num_steps
    assert resumed.losses == pytest.approx(whole.losses, rel=2e-2)  # the GPU may add up in another order


def test_a_loss_that_is_no_number_is_noticed_on_a_gpu_with_its_step(tmp_path: Path) -> None:
    """Though the host reads losses many steps later."""
    from modelhound.errors import ModelError
    from modelhound.training import train
    from train_things import bench_of, brightness, quick, tiny_network

    network = tiny_network()
    seen = itertools.count(1)

    def spoil(module: torch.nn.Module, _given: object) -> None:
        if module.training and next(seen) == 9:
            with torch.no_grad():
                module.get_parameter("bias").fill_(float("nan"))

    network.module.get_submodule("convolution").register_forward_pre_hook(spoil)
    with pytest.raises(ModelError, match=r"nan at step 9; the last good checkpoint is epoch-00001;"):
        train(
            bench_of(network, brightness(tmp_path / "photos"), quick(), device="cuda:0"), checkpoints=tmp_path / "kept"
        )


def train_on_the_first_gpu(argument: Any) -> dict[str, Any]:
    from modelhound.data import open_dataset
    from modelhound.training import fine_tune
    from train_things import quick, tiny_network

    recipe = quick(batch=argument["batch"], precision="fp32", augment="flip")
    trained = fine_tune(tiny_network(), open_dataset(argument["data"]), recipe, device="cuda:0")
    return {
        "losses": trained.losses,
        "seconds": {each.phase: each.total for each in trained.phases},
        "wall_seconds": trained.wall_seconds,
    }


def test_two_ranks_that_share_a_gpu_learn_what_one_learns_and_their_phases_add_up(tmp_path: Path) -> None:
    """Over gloo, which takes a GPU's tensors too: NCCL wants a GPU for each rank."""
    from modelhound.launch import run_on_ranks
    from train_things import brightness

    brightness(tmp_path / "photos", per_class=40)
    alone, both = (
        run_on_ranks(
            "test_train_on_gpu:train_on_the_first_gpu",
            {"data": str(tmp_path / "photos"), "batch": 8 // num_ranks},
            num_ranks=num_ranks,
            folder=tmp_path / f"on-{num_ranks}",
        )
        for num_ranks in (1, 2)
    )
    assert both[0]["losses"] == both[1]["losses"]
    assert both[0]["losses"] == pytest.approx(alone[0]["losses"], rel=2e-2)
    for rank in both:
        assert sum(rank["seconds"].values()) == pytest.approx(rank["wall_seconds"], rel=0.02)
        assert rank["seconds"]["communication"] > 0
    assert alone[0]["seconds"]["communication"] == 0


def add_up_on_the_gpu(argument: Any) -> list[Any]:
    from torch import distributed

    values = torch.arange(3.0, device=f"cuda:{torch.cuda.current_device()}")
    distributed.all_reduce(values)
    return [distributed.get_backend(), values.tolist()]


def test_a_rank_of_its_own_gpu_talks_over_nccl(tmp_path: Path) -> None:
    from modelhound.launch import run_on_ranks

    ranks = run_on_ranks(
        "test_train_on_gpu:add_up_on_the_gpu", None, num_ranks=1, folder=tmp_path / "ranks", device="cuda"
    )
    assert ranks == [["nccl", [0.0, 1.0, 2.0]]]


def test_a_batch_that_does_not_fit_into_the_gpu_is_cut_and_said_so(tmp_path: Path) -> None:
    from modelhound.features import build_network
    from modelhound.models import ModelRef
    from modelhound.settings import PLAIN
    from modelhound.training import fine_tune
    from train_things import brightness, quick

    dataset = brightness(tmp_path / "photos", per_class=60)
    network = build_network(ModelRef("timm", "resnet50"), None, PLAIN, seed=0)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
    try:
        trained = fine_tune(network, dataset, quick(epochs=1, batch=128, rate=1e-3), device="cuda:0")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert trained.num_parts > 1
    assert "did not fit into memory" in trained.notes[0]
    assert trained.peak_memory_bytes < 4 * 2**30


def test_a_known_delay_of_the_model_is_found_on_the_critical_path_of_a_gpu(tmp_path: Path) -> None:
    from modelhound.analysis.bounds import judge_blocks
    from modelhound.training import Delays, set_up
    from modelhound.training.intervening import intervene
    from train_things import brightness, quick, tiny_network

    dataset = brightness(tmp_path / "photos")
    items, held_out = dataset.select(range(0, 60, 2)), dataset.select(range(1, 60, 2))
    delays = Delays(model_seconds=0.05)
    bench = set_up(tiny_network(), items, held_out, quick(batch=4, workers=1), device="cuda:0", delays=delays)
    doses = judge_blocks(intervene(bench, budget_seconds=4.0, doses=True)).doses
    shares = {dose.stage: dose.share for dose in doses}
    assert shares["model"] == pytest.approx(1.0, abs=0.15)  # the GPU's clock was read before it was asked to wait
    assert shares["loading"] < 0.5  # a process of its own hides it
