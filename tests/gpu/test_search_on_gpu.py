"""The plain path on a CUDA device gives what the CPU gives, within what fp32 arithmetic in another order may change."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import modelhound
from modelhound.data import open_dataset
from modelhound.features import extract_features
from modelhound.features.staging import Staging
from modelhound.meter import Meter, describe_machine, resolve_device
from modelhound.models import SOURCES
from modelhound.records import to_plain
from modelhound.scores import Begun, FeatureSet, begin, finish, logistic, score
from modelhound.settings import SCORERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

FAMILIES = ["resnet-glyphs", "vit-rotation", "mobilenet-shapes", "convnext-textures", "mixer-shapes", "resmlp-rotation"]


@pytest.mark.parametrize("name", FAMILIES)
def test_features_equal_those_of_the_cpu(name: str) -> None:
    dataset = open_dataset("fashion", limit=100)
    source = SOURCES["zoo"]
    features = []
    for device in ("cpu", "cuda:0"):
        network = source.build(name, source.read_weights(name))
        network.module.to(device)
        meter = Meter(device)
        (made,) = extract_features(network, dataset, device=device, batch=32, workers=0, meter=meter).layers
        features.append(made.features)
    assert features[1].is_cuda
    torch.testing.assert_close(features[1].cpu(), features[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(400, 64), (100, 300)])
def test_scores_equal_those_of_the_cpu(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(shape[0]) % 4
    features = torch.randn(shape, generator=generator) + 0.5 * torch.nn.functional.one_hot(labels, shape[1]).float()
    on_cpu, on_gpu = (
        score(
            FeatureSet(features=features.to(device), targets=labels.to(device), num_classes=4), SCORERS, seed=0
        ).values
        for device in ("cpu", "cuda:0")
    )
    assert list(on_cpu) == [name for name in SCORERS if name != "leep"]  # these features have no classifier
    for name in on_cpu:
        assert on_gpu[name].value == pytest.approx(on_cpu[name].value, rel=1e-6, abs=1e-6)


def test_a_probe_beside_other_work_finds_what_it_finds_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1000) % 7
    features = torch.randn(1000, 200, generator=generator) + torch.nn.functional.one_hot(labels, 200)
    feature_set = FeatureSet(features=features.cuda(), targets=labels.cuda(), num_classes=7)
    alone = score(feature_set, ["probe"], seed=0).values["probe"]
    torch.cuda.synchronize()
    other = torch.randn(4096, 4096, device="cuda")
    for _ in range(50):  # keeps the default stream busy for longer than the probe takes
        other = torch.nn.functional.normalize(other @ other)
    with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
        beside = score(feature_set, ["probe"], seed=0).values["probe"]
    assert beside.value == alone.value
    assert beside.value > 0.2  # a seventh would be guessing


def test_probes_of_several_models_begun_in_threads_are_trained_as_one_and_find_what_each_finds_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2000) % 7
    sets = [
        FeatureSet(
            features=(
                torch.randn(2000, width, generator=generator) + strength * torch.nn.functional.one_hot(labels, width)
            ).cuda(),
            targets=labels.cuda(),
            num_classes=7,
        )
        for strength, width in ((1, 200), (2, 200), (1, 300), (3, 200), (4, 200))
    ]
    alone = [score(each, ["ridge", "probe"], seed=0).values["probe"].value for each in sets]
    torch.cuda.synchronize()
    sizes: list[int] = []
    solve = logistic._solve

    def note_and_solve(problems: Sequence[logistic.Regression]) -> list[torch.Tensor]:
        sizes.append(len(problems))
        return solve(problems)

    monkeypatch.setattr(logistic, "_solve", note_and_solve)

    def ask(feature_set: FeatureSet) -> Begun:
        with torch.cuda.stream(torch.cuda.Stream()):
            return begin(feature_set, ["ridge", "probe"], seed=0)

    with ThreadPoolExecutor(len(sets)) as threads:
        begun = list(threads.map(ask, sets))
    assert not any(each.is_over for each in begun)
    found = [each.values["probe"].value for each in finish(begun)]
    assert sizes == [4, 1]  # one is of another width
    assert found == pytest.approx(alone, abs=0.006)  # two of 400 items on the edge
    assert found[0] < found[1] < found[3]


def test_a_search_ranks_as_on_the_cpu(tmp_path: Path) -> None:
    models = [f"zoo:{name}" for name in FAMILIES]
    on_cpu, on_gpu = (
        modelhound.search("digits", models, limit=200, device=device, run=tmp_path / device)
        for device in ("cpu", "cuda")
    )
    assert on_gpu.device == "cuda:0"
    gpu_scores = {row.model: row.score for row in on_gpu.ranking.models}
    for row in on_cpu.ranking.models:
        assert gpu_scores[row.model] == pytest.approx(row.score, abs=0.011)  # at most two of 200 items on the edge


def test_a_run_on_the_cpu_is_not_resumed_on_the_gpu(tmp_path: Path) -> None:
    modelhound.search("digits", "zoo:resnet-glyphs", limit=40, device="cpu", run=tmp_path / "run")
    with pytest.raises(modelhound.RequestError, match="device was 'cpu', now 'cuda'"):
        modelhound.search("digits", "zoo:resnet-glyphs", limit=40, device="cuda", run=tmp_path / "run")


def test_the_meter_waits_for_the_device() -> None:
    meter = Meter("cuda:0")
    matrix = torch.ones(8192, 8192, device="cuda:0")
    with meter.phase("warm up"):
        matrix @ matrix
    with meter.phase("ten products"):
        for _ in range(10):
            matrix @ matrix
    seconds = meter.samples[1].total
    assert 10 * 2 * 8192**3 / seconds < 2e15  # more would mean that nobody waited for the result
    assert meter.peak_memory_bytes >= 2 * 4 * 8192**2


def test_the_gpu_is_described() -> None:
    assert resolve_device("auto") == "cuda:0"
    machine = to_plain(describe_machine())
    assert machine["gpus"][0] == torch.cuda.get_device_name(0)
    assert machine["driver"]


@pytest.mark.parametrize("piece_bytes", [1000, 1 << 20])
def test_tensors_brought_together_are_those_that_torch_brings_one_by_one(piece_bytes: int) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(100), torch.tensor(7), torch.randn(64, 32, 3, 3), torch.randn(40, 30).T, torch.randn(9) > 0]
    staging = Staging("cuda:0", piece_bytes=piece_bytes)
    for _ in range(3):  # pieces are used again while the device may still read them
        wanted = [
            each.to("cuda:0", torch.bfloat16 if each.is_floating_point() else each.dtype).to(
                memory_format=torch.channels_last if each.ndim == 4 else torch.preserve_format
            )
            for each in tensors
        ]
        for made, expected in zip(staging.bring(tensors, [each.to("meta") for each in wanted]), wanted, strict=True):
            assert (made.dtype, made.stride()) == (expected.dtype, expected.stride())
            assert torch.equal(made, expected)
        tensors = [each.flip(0) if each.ndim else each + 1 for each in tensors]


def test_a_host_that_waits_beside_earlier_work_takes_nothing_from_the_forward_passes() -> None:
    matrix = torch.randn(8192, 8192, device="cuda:0")
    alone = Meter("cuda:0")
    for _ in range(3):  # the first ones load kernels
        with alone.phase("forward", later=True):
            matrix @ matrix
    seconds = alone.samples[0].seconds[-1]
    meter = Meter("cuda:0")
    for _ in range(40):  # what was handed over before
        matrix @ matrix
    with meter.phase("forward", later=True):
        with meter.phase("wait for data", on_host=True):
            time.sleep(10 * seconds)  # the device has something to do all the while
        matrix @ matrix
    phases = {each.phase: each.total for each in meter.samples}
    assert phases["forward"] > 0.5 * seconds
    assert phases["wait for data"] < 5 * seconds
