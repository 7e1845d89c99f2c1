"""Finals on a GPU: trials learn there, several at once, and the best network wins as it does on a CPU."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device that torch can use"),
]


def test_the_network_that_learns_best_wins_on_a_gpu(tmp_path: Path) -> None:
    from finals_networks import write_coloured, write_networks
    from modelhound.settings import SearchSettings
    from modelhound.verbs.search import run_search

    networks = write_networks(Path.cwd())
    data = write_coloured(tmp_path / "coloured")
    chosen = tuple(networks[name] for name in ("sharp", "dull", "exploding"))
    result = run_search(SearchSettings(str(data), models=chosen, finals="3", finals_budget="100%", device="cuda:0"))
    finals = result.ranking.finals
    assert finals is not None
    assert finals.winner == networks["sharp"]
    assert [failure.model for failure in result.failures] == [networks["exploding"]]
    assert finals.checkpoint is not None


def test_processes_that_share_a_gpu_learn_what_one_would() -> None:
    import numpy as np

    from modelhound.analysis.trials import draw_folds
    from modelhound.compat import import_timm
    from modelhound.data import open_dataset
    from modelhound.finals.held_items import HeldItems
    from modelhound.finals.trial_pool import TrialPool
    from modelhound.finals.trials import Classroom, TrialRequest, TrialResult
    from modelhound.records import unpack_items
    from modelhound.settings import ModelSettings

    import_timm()
    dataset = open_dataset("digits", limit=200)
    room = Classroom(dataset, draw_folds(dataset.targets, seed=0), HeldItems(dataset, "cuda:0"))
    requests = [
        TrialRequest(
            model=model,
            model_settings=ModelSettings(models=(model,)),
            rate=2.7e-3,
            fold=0,
            cycles=(8,),
            device="cuda:0",
            seed=0,
        )
        for model in ("zoo:resnet-glyphs", "zoo:mobilenet-glyphs", "zoo:vit-glyphs")
    ]
    scores = {}
    for num_processes in (0, 3):
        found: dict[int, TrialResult] = {}
        with TrialPool(room, num_processes=num_processes) as pool:
            pool.run(requests, found.__setitem__)
        assert [result.error for result in found.values()] == ["", "", ""]
        scores[num_processes] = np.array([unpack_items(found[place].item_scores).mean() for place in range(3)])
    assert scores[0].min() > 0.6
    assert np.abs(scores[0] - scores[3]).max() < 0.12  # bf16, and kernels that add in another order


def test_a_trial_that_will_not_be_over_in_time_is_given_up_on_a_gpu() -> None:
    from modelhound.analysis.trials import draw_folds
    from modelhound.compat import import_timm
    from modelhound.data import open_dataset
    from modelhound.finals.held_items import HeldItems
    from modelhound.finals.trials import Classroom, TrialRequest, run_trial
    from modelhound.settings import ModelSettings

    import_timm()
    dataset = open_dataset("digits", limit=200)
    room = Classroom(dataset, draw_folds(dataset.targets, seed=0), HeldItems(dataset, "cuda:0"))
    model = "zoo:resnet-glyphs"
    asked = TrialRequest(
        model=model,
        model_settings=ModelSettings(models=(model,)),
        rate=2.7e-3,
        fold=0,
        cycles=(100_000,),
        device="cuda:0",
        seed=0,
        seconds_left=3.0,
    )
    assert run_trial(asked, room).is_given_up
