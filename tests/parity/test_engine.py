"""The engine gives what the plain path gives: exactly on a CPU in fp32, for every family, whatever is shared."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import modelhound
from finals_networks import write_coloured, write_networks
from modelhound.compat import import_timm
from modelhound.data import open_dataset
from modelhound.data.decode import decode
from modelhound.features import arrange, extract_features, suitable_batch, supply, surveying
from modelhound.features.many import Session
from modelhound.launch.arithmetic import try_bf16
from modelhound.measuring import deciding
from modelhound.meter import Meter
from modelhound.models import ModelRef, find_models, source_of
from modelhound.settings import ModelSettings
from tiny_encoders import write_encoder, write_timm

ONE_OF_EVERY_FAMILY = [
    *("zoo:resnet-glyphs", "zoo:vit-rotation", "zoo:mobilenet-shapes", "zoo:convnext-textures", "zoo:mixer-shapes"),
    *("zoo:resmlp-rotation", "zoo:efficientnet_lite0"),
]


def rows_of(data: Any, models: list[str], **options: Any) -> dict[str, torch.Tensor]:
    """Features by the engine."""
    found: dict[str, torch.Tensor] = {}
    refs = find_models(models)
    options = {"remember": False, **options}
    with Session(data, ModelSettings(**options.pop("settings", {})), seed=0, device="cpu", **options) as session:
        session.survey(dict.fromkeys(refs, ""), failed=fail)
        session.run(
            [str(model) for model in refs],
            range(len(data)),
            range(len(data)),
            done=lambda model, rows, keep: found.update({model: rows.features}),
            failed=fail,
        )
    return found


def fail(model: str, phase: str, error: Exception) -> None:
    raise AssertionError(f"{model} in {phase}") from error


def plain_rows(data: Any, model: ModelRef, **settings: Any) -> torch.Tensor:
    source = source_of(model)
    network = source.build(model.name, source.read_weights(model.name), ModelSettings(**settings))
    arrange(network, "cpu")
    batch = suitable_batch(network.preprocessing, "cpu")
    (features,) = extract_features(network, data, device="cpu", batch=batch, workers=0, meter=Meter()).layers
    return features.features


@pytest.mark.parametrize("num_threads", [1, 2])
def test_features_of_every_family_are_those_of_the_plain_path_to_the_last_bit(num_threads: int) -> None:
    data = open_dataset("fashion", limit=20)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        found = rows_of(data, ONE_OF_EVERY_FAMILY)
        for model in find_models(ONE_OF_EVERY_FAMILY):
            assert torch.equal(found[str(model)], plain_rows(data, model)), model
    finally:
        torch.set_num_threads(before)


def test_bf16_on_a_cpu_gives_the_same_features_within_its_rounding() -> None:
    found = try_bf16()
    if not (found.outcome.ok and found.is_right):
        pytest.skip(f"this CPU cannot have bf16: {found.outcome.ending}")
    data = open_dataset("fashion", limit=20)
    exact = rows_of(data, ONE_OF_EVERY_FAMILY)
    for model, rows in rows_of(data, ONE_OF_EVERY_FAMILY, dtype=torch.bfloat16).items():
        assert rows.dtype == torch.float32, model
        assert not torch.equal(rows, exact[model]), model
        assert float((rows - exact[model]).norm() / exact[model].norm()) < 0.1, model  # of deep ones most


def test_networks_with_a_trunk_in_common_that_are_fed_differently_keep_their_own_ends(tmp_path: Path) -> None:
    data = open_dataset("fashion", limit=20)
    one, other = (write_timm(tmp_path / name) for name in ("one", "other"))
    config = other / "config.json"
    config.write_text(config.read_text().replace("[0.1, 0.2, 0.3]", "[0.3, 0.2, 0.1]"))
    weights = load_file(other / "model.safetensors")
    last = [name for name, tensor in weights.items() if tensor.ndim == 4][-1]
    save_file({**weights, last: -weights[last]}, other / "model.safetensors")
    models = [f"file:{one}", f"file:{other}"]
    found = rows_of(data, models)
    for model in find_models(models):
        assert torch.equal(found[str(model)], plain_rows(data, model)), model


def test_a_file_that_is_cut_short_meanwhile_is_told_to_its_own_model_only(tmp_path: Path) -> None:
    """Not to the one that shares all but the last layer with it, though the first of both is who lends what they share."""
    data = open_dataset("fashion", limit=20)
    one, other = (write_timm(tmp_path / name) for name in ("one", "other"))
    weights = load_file(one / "model.safetensors")
    last = [name for name, tensor in weights.items() if tensor.ndim == 4][-1]
    save_file({**weights, last: -weights[last]}, other / "model.safetensors")
    refs = find_models([f"file:{one}", f"file:{other}"])
    made, lost = {}, {}
    with Session(data, ModelSettings(), seed=0, device="cpu", remember=False) as session:
        session.survey(dict.fromkeys(refs, ""), failed=fail)
        os.truncate(one / "model.safetensors", 1000)
        session.run(
            [str(model) for model in refs],
            range(20),
            range(20),
            done=lambda model, rows, keep: made.update({model: rows.features}),
            failed=lambda model, phase, error: lost.update({model: str(error)}),
        )
    assert list(lost) == [f"file:{one}"]
    assert "cut it short" in lost[f"file:{one}"]
    assert torch.equal(made[f"file:{other}"], plain_rows(data, refs[1]))


def test_what_the_forward_uses_around_its_modules_is_that_of_the_model_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks of one class whose last parts are equal and have no weights, while their own tensors differ."""
    monkeypatch.syspath_prepend(tmp_path)
    networks = write_networks(tmp_path)
    data = open_dataset(str(write_coloured(tmp_path / "coloured")))
    models = [networks[name] for name in ("dull", "sharp", "blind")]
    found = rows_of(data, models)
    for model in find_models(models):
        assert torch.equal(found[str(model)], plain_rows(data, model)), model


def test_networks_of_several_kinds_may_be_taken_apart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset("fashion", limit=20)
    alone = rows_of(data, ONE_OF_EVERY_FAMILY[:4])
    monkeypatch.setitem(surveying._KINDS_AT_ONCE, "cpu", 4)
    together = rows_of(data, ONE_OF_EVERY_FAMILY[:4])
    assert list(together) == list(alone) != []
    assert all(torch.equal(together[model], alone[model]) for model in alone)


@pytest.mark.parametrize(("at_once", "num_taken_apart"), [(1, 2), (2, 0)])
def test_items_may_be_decoded_while_networks_are_taken_apart(
    monkeypatch: pytest.MonkeyPatch, at_once: int, num_taken_apart: int
) -> None:
    """What they want is known when they are built; where one that cannot be built is among them as well."""
    monkeypatch.setitem(surveying._KINDS_AT_ONCE, "cpu", at_once)
    models = [*find_models(["zoo:resnet-shapes", "zoo:vit-glyphs"]), ModelRef("file", "/nowhere")]
    session = Session(open_dataset("fashion", limit=20), ModelSettings(), seed=0, device="cpu", remember=False)
    known: list[tuple[int, int]] = []
    lost: list[str] = []
    session.survey(
        dict.fromkeys(models, ""),
        failed=lambda model, phase, error: lost.append(model),
        forms_known=lambda: known.append((len(session.specimens), len(session._forms))),
    )
    assert known == [(num_taken_apart, 2)]
    assert (len(session.specimens), lost) == (2, ["file:/nowhere"])


def test_siblings_that_share_a_trunk_are_too_and_the_trunk_runs_once() -> None:
    data = open_dataset("fashion", limit=150)
    models = find_models(["zoo:resnet-shapes*", "zoo:vit-glyphs*", "zoo:mobilenet-rotation*"])
    found = rows_of(data, [str(model) for model in models])
    for model in models:
        assert torch.equal(found[str(model)], plain_rows(data, model)), model
    session = Session(data, ModelSettings(), seed=0, device="cpu", remember=False)
    session.survey(dict.fromkeys(models, ""), failed=fail)
    plan = session.planner.plan([str(model) for model in models], range(150))
    run = [segment.fingerprint for step in plan.steps for segment in step.segments if segment.weight_bytes]
    assert len(run) == len(set(run))
    assert len(run) < 0.8 * sum(len(chain.segments) for chain in plan.chains)


@pytest.mark.parametrize("memory_bytes", [145_000_000, 126_000_000])
def test_little_memory_changes_the_plan_but_not_the_features(memory_bytes: int) -> None:
    data = open_dataset("fashion", limit=256)
    models = ["zoo:resnet-shapes", "zoo:resnet-shapes-glyphs", "zoo:mobilenet-shapes"]
    whole, tight = rows_of(data, models), rows_of(data, models, memory_bytes=memory_bytes)
    for model in models:
        torch.testing.assert_close(tight[model], whole[model], rtol=1e-4, atol=1e-5)


def test_items_may_come_in_any_order_and_in_rungs() -> None:
    data = open_dataset("digits", limit=100)
    models = ["zoo:resnet-glyphs", "zoo:vit-rotation"]
    whole = rows_of(data, models)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0)).tolist()
    session = Session(data, ModelSettings(), seed=0, device="cpu", remember=False)
    session.survey(dict.fromkeys(find_models(models), ""), failed=fail)
    parts: dict[str, list[torch.Tensor]] = {model: [] for model in models}
    for items in (range(30), range(30, 100)):
        session.run(models, items, order, done=lambda model, rows, _: parts[model].append(rows.features), failed=fail)
    for model in models:
        torch.testing.assert_close(torch.cat(parts[model]), whole[model][order], rtol=1e-4, atol=1e-5)


def test_a_tensor_that_differs_ends_what_is_shared(tmp_path: Path) -> None:
    """BatchNorm's statistics count, and so does the last bit of a weight."""
    timm = import_timm()
    torch.manual_seed(0)
    module = timm.create_model("resnet18", num_classes=0)
    changes: dict[str, Callable[[dict[str, torch.Tensor]], None]] = {
        "same": lambda state: None,
        "statistics": lambda state: state["layer4.1.bn2.running_mean"].add_(0.5),
        "one-bit": lambda state: state["layer3.0.conv1.weight"].view(torch.int32)[0, 0, 0, 0].bitwise_xor_(1),
    }
    for name, change in changes.items():
        state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        change(state)
        folder = tmp_path / "pool" / name
        folder.mkdir(parents=True)
        save_file(state, folder / "model.safetensors")
        (folder / "config.json").write_text(
            '{"architecture": "resnet18", "num_classes": 0, "pretrained_cfg": {"input_size": [3, 64, 64]}}'
        )
    data = open_dataset("digits", limit=40)
    models = find_models([f"file:{tmp_path}/pool/*"])
    session = Session(data, ModelSettings(), seed=0, device="cpu", remember=False)
    session.survey(dict.fromkeys(models, ""), failed=fail)
    names = ["one-bit", "same", "statistics"]
    one_bit, same, statistics = (session.specimens[f"file:{tmp_path}/pool/{name}"].fingerprints for name in names)
    parts = session.specimens[str(models[0])].blueprint.anatomy.parts
    differs = [place for place in range(len(parts)) if same[place] != statistics[place]]
    assert ["layer4.1.bn2.running_mean" in parts[place].tensors for place in differs] == [True]
    differs = [place for place in range(len(parts)) if same[place] != one_bit[place]]
    assert ["layer3.0.conv1.weight" in parts[place].tensors for place in differs] == [True]
    assert len({id(each.blueprint) for each in session.specimens.values()}) == 1
    found = rows_of(data, [str(model) for model in models])
    for model in models:
        assert torch.equal(found[str(model)], plain_rows(data, model)), model


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "distilbert", "longformer"])
def test_text_encoders_are_near_the_plain_path_however_texts_are_batched(tmp_path: Path, family: str) -> None:
    write_encoder(tmp_path / family, family)
    data = open_dataset("sms", limit=60)
    model = f"file:{tmp_path / family}"
    (ref,) = find_models([model])
    torch.testing.assert_close(rows_of(data, [model])[model], plain_rows(data, ref), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"layers": "best"}, {"pooling": "max", "layers": "mean"}, {"weights": "random"}]
)
def test_a_search_of_texts_gives_the_same_ranking_as_the_plain_one(tmp_path: Path, options: dict[str, Any]) -> None:
    for seed in range(3):
        write_encoder(tmp_path / "pool" / str(seed), "bert", seed=seed)
    fast, plain = (
        modelhound.search(
            "sms", f"file:{tmp_path}/pool/*", limit=100, plain=slow, run=tmp_path / f"run{slow}", **options
        )
        for slow in (False, True)
    )
    assert [row.model for row in fast.ranking.models] == [row.model for row in plain.ranking.models]
    for mine, theirs in zip(fast.ranking.models, plain.ranking.models, strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=0.011)
    assert fast.notes == plain.notes


def test_the_score_of_a_model_that_is_dropped_is_that_of_the_items_it_was_tested_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "_JUDGE_SECONDS", {"cpu": 0.0})  # small networks: else it would not pay to race
    found = modelhound.search(
        "fashion",
        "zoo:resnet-shapes*,zoo:resnet-garments_a",
        limit=400,
        top=1,
        risk=0.5,
        scorers="probe",
        run=tmp_path / "run",
        device="cpu",
    )
    assert 100 in {each.num_items for each in found.dropped}
    for each in found.dropped:
        num_tested = each.num_items // 5  # which the probe does not learn from
        assert num_tested * each.score == pytest.approx(round(num_tested * each.score))
    assert max(each.score for each in found.dropped) > 0.4


def test_a_search_of_images_gives_the_same_scores_as_the_plain_one(tmp_path: Path) -> None:
    fast, plain = (
        modelhound.search(
            "fashion",
            "zoo:resnet*,zoo:vit*",
            limit=120,
            scorers="ridge,knn,leep,logme",
            plain=slow,
            exhaustive=True,
            run=tmp_path / f"run{slow}",
        )
        for slow in (False, True)
    )
    assert [(row.model, row.rank, row.scores) for row in fast.ranking.models] == [
        (row.model, row.rank, row.scores) for row in plain.ranking.models
    ]


@pytest.mark.parametrize(("workers", "expected"), [(None, None), (0, 1), (3, 3)])
def test_workers_are_the_threads_that_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, expected: int | None
) -> None:
    asked = []

    def note(*arguments: Any, threads: int | None, **options: Any) -> Any:
        asked.append(threads)
        return decode(*arguments, threads=threads, **options)

    monkeypatch.setattr(supply, "decode", note)
    modelhound.search("digits", "zoo:vit-rotation", limit=40, workers=workers, run=tmp_path / "run")
    assert asked == [expected]


def test_a_race_drops_models_and_finds_the_same_best(tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit": 800, "scorers": "ridge", "top": 1}
    race = modelhound.search("fashion", "zoo:*-*", run=tmp_path / "race", **options)
    whole = modelhound.search("fashion", "zoo:*-*", run=tmp_path / "whole", exhaustive=True, **options)
    assert len(race.dropped) >= 5
    assert len(race.dropped) + len(race.ranking.models) == len(whole.ranking.models)
    assert race.ranking.models[0].model == whole.ranking.models[0].model
    assert race.ranking.models[0].score == pytest.approx(whole.ranking.models[0].score, abs=1e-9)
    assert all(each.chance < 0.01 for each in race.dropped)
    again = modelhound.search("fashion", "zoo:*-*", run=tmp_path / "race", **options)
    assert (again.ranking, again.dropped) == (race.ranking, race.dropped)
    assert again.num_resumed == len(race.ranking.models)
    scores = {row.model: row.score for row in whole.ranking.models}
    assert max(scores[each.model] for each in race.dropped) < max(scores.values()) - 0.02
