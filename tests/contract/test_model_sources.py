"""What every model source promises, and what each of them promises besides."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import save_file

import modelhound
from hub import serve_hub
from modelhound.compat import import_timm
from modelhound.data import Tokenising, modality_of, open_dataset
from modelhound.data.tokenising import tokenise
from modelhound.errors import ModelError, UnknownModelError
from modelhound.features import extract_features
from modelhound.meter import Meter
from modelhound.models import SOURCES, ModelRef, describe_models, find_models
from modelhound.models.timm import TimmSource
from modelhound.models.zoo import ZooSource
from modelhound.scores import score
from tiny_encoders import write_encoder, write_timm, write_vit

EXAMPLES = [
    "zoo:resnet-glyphs",
    "zoo:vit-rotation",
    "zoo:mobilenet-shapes",
    "zoo:convnext-textures",
    "zoo:mixer-shapes",
    "zoo:resmlp-rotation",
    "zoo:efficientnet_lite0",
    "timm:test_vit",
    "timm:test_resnet",
    "timm:test_convnext",
]
"""One of every family, so that each way of building is gone through."""


def random_images(size: tuple[int, int], count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("reference", EXAMPLES)
def test_a_card_tells_what_building_would_show(reference: str) -> None:
    (model,) = find_models([reference])
    (card,) = describe_models([model])
    network = SOURCES[model.source].build(model.name, None)
    assert card.model == reference
    assert card.num_parameters == network.num_parameters
    assert card.input_size == network.preprocessing.input_size


@pytest.mark.parametrize("reference", EXAMPLES)
def test_features_are_one_vector_per_item_whatever_the_batch(reference: str) -> None:
    (model,) = find_models([reference])
    network = SOURCES[model.source].build(model.name, None)
    images = random_images(network.preprocessing.input_size)
    with torch.inference_mode():
        both = network.extract(images)
        single = network.extract(images[:1])
    assert both.shape[0] == 2
    assert both.ndim == 2
    torch.testing.assert_close(both[:1], single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", ["zoo", "timm", "tv"])
def test_names_are_unique_and_can_all_be_asked_for(source: str) -> None:
    names = SOURCES[source].suggest("")
    assert len(set(names)) == len(names) >= 12
    assert [str(model) for model in find_models([f"{source}:*"])] == [f"{source}:{name}" for name in names]


@pytest.mark.parametrize("name", sorted(SOURCES["zoo"].suggest("")))
def test_zoo_weights_are_the_ones_the_card_speaks_of(name: str) -> None:
    source = SOURCES["zoo"]
    weights = source.read_weights(name)
    network = source.build(name, weights)
    state = network.module.state_dict()
    assert set(state) == set(weights)
    assert all(torch.equal(state[key], tensor) for key, tensor in weights.items())
    assert not network.module.training


def test_the_zoo_is_small_and_of_several_families() -> None:
    folder = ZooSource()._folder
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) < 8_000_000
    embedded = [card for card in describe_models(find_models(["zoo:*"])) if card.family != "efficientnet"]
    assert len(embedded) >= 12
    assert {"resnet", "mobilenet", "vit", "convnext", "mixer"} <= {card.family for card in embedded}


@pytest.mark.parametrize(
    ("parent", "sibling", "trunk"),
    [
        ("resnet-shapes", "resnet-shapes-glyphs", ("conv1", "bn1", "layer1", "layer2", "layer3")),
        ("vit-glyphs", "vit-glyphs-garments_a", ("patch_embed", "blocks.0", "blocks.1", "blocks.2")),
    ],
)
def test_siblings_share_their_trunk_bit_for_bit(parent: str, sibling: str, trunk: tuple[str, ...]) -> None:
    first, second = (SOURCES["zoo"].read_weights(name) for name in (parent, sibling))
    shared = [key for key in first if key.startswith(tuple(f"{part}." for part in trunk))]
    assert len(shared) > 10
    assert all(torch.equal(first[key], second[key]) for key in shared)
    assert any(not torch.equal(first[key], second[key]) for key in first if first[key].shape == second[key].shape)


def test_efficientnet_lite_knows_more_of_garments_than_chance_weights() -> None:
    """The tensors stand in the right places only if features make sense."""
    dataset = open_dataset("fashion", limit=60)
    source = SOURCES["zoo"]
    scores = []
    for weights in (source.read_weights("efficientnet_lite0"), None):
        torch.manual_seed(0)
        network = source.build("efficientnet_lite0", weights)
        (features,) = extract_features(network, dataset, device="cpu", batch=30, workers=0, meter=Meter()).layers
        scores.append(score(features, ["ridge"], seed=0).values["ridge"].value)
    assert scores[0] > scores[1] + 0.1


def test_globs_keep_the_order_asked_for_and_name_each_model_once() -> None:
    found = find_models(["zoo:vit-rotation", "zoo:vit*"])
    assert found[0] == ModelRef("zoo", "vit-rotation")
    assert len(set(found)) == len(found) == 4


@pytest.mark.parametrize("pattern", ["", "zoo:", "zoo:x*", "hub:resnet", "zoo:RESNET-GLYPHS"])
def test_what_means_no_model_is_an_error(pattern: str) -> None:
    with pytest.raises(UnknownModelError, match="cannot find model"):
        find_models([pattern])


def test_timm_knows_tagged_names() -> None:
    (model,) = find_models(["timm:resnet18.a1_in1k"])
    assert describe_models([model])[0].num_parameters == 11_689_512
    tagged = {model.name for model in find_models(["timm:resnet18.*"])}
    assert len(tagged) > 2
    assert "resnet18.a1_in1k" in tagged
    assert all(name.startswith("resnet18.") for name in tagged)


def test_listing_timm_again_does_not_import_it(tmp_path: Path) -> None:
    describe_models(find_models(["timm:test_resnet"]))
    code = (
        "import sys; from modelhound.models import *; describe_models(find_models(['timm:test_resnet'])); "
        "sys.exit('timm' in sys.modules)"
    )
    # The first process remembers, in the cache folder that this test has to itself.
    for expected in (1, 0):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == expected


def test_weights_cut_off_on_disk_are_refused(tmp_path: Path) -> None:
    original = ZooSource()._folder / "resnet-glyphs.safetensors"
    (tmp_path / original.name).write_bytes(original.read_bytes()[:5000])
    with pytest.raises(ModelError, match="damaged"):
        ZooSource(tmp_path).read_weights("resnet-glyphs")


def hub_search(endpoint: str, tmp_path: Path, *options: str, data: str = "digits") -> dict[str, Any]:
    """A search in its own process, since the hub's client reads its settings when it is imported."""
    command = [sys.executable, "-m", "modelhound", "search", data, "--limit", "20", "--json", *options]
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hub-cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return {**document, "code": done.returncode}


@pytest.fixture
def hub_files(tmp_path: Path) -> Path:
    """A repository with weights that differ from what timm would draw."""
    torch.manual_seed(7)
    module = import_timm().create_model("test_resnet")
    folder = tmp_path / "hub-files" / "timm" / "test_resnet.r160_in1k"
    folder.mkdir(parents=True)
    save_file(module.state_dict(), folder / "model.safetensors")
    return tmp_path / "hub-files"


def test_timm_weights_come_from_the_hub_and_then_from_its_cache(hub_files: Path, tmp_path: Path) -> None:
    options = ["--models", "timm:test_resnet"]
    with serve_hub(hub_files) as endpoint:
        fetched = hub_search(endpoint, tmp_path, *options, "--run", "fetched")
    assert (fetched["code"], fetched["failures"]) == (0, [])
    offline = hub_search("http://127.0.0.1:9", tmp_path, *options, "--run", "offline")
    assert offline["failures"] == []
    assert offline["ranking"][0]["scores"] == fetched["ranking"][0]["scores"]
    drawn = modelhound.search("digits", "timm:test_resnet", limit=20, weights="random").to_json()  # asks no hub
    assert drawn["ranking"][0]["scores"] != fetched["ranking"][0]["scores"]


def test_weights_that_cannot_be_fetched_fail_alone_and_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    document = hub_search("http://127.0.0.1:9", tmp_path, "--models", "timm:test_resnet,zoo:mobilenet-rotation")
    assert document["code"] == 0
    assert [row["model"] for row in document["ranking"]] == ["zoo:mobilenet-rotation"]
    (failure,) = document["failures"]
    assert (failure["model"], failure["phase"]) == ("timm:test_resnet", "read weights")
    assert "--weights random" in failure["error"]


def test_a_repository_that_is_not_on_the_hub_fails_alone(tmp_path: Path) -> None:
    with serve_hub(tmp_path / "empty") as endpoint:
        document = hub_search(endpoint, tmp_path, "--models", "timm:test_resnet,zoo:mobilenet-rotation")
    assert [each["phase"] for each in document["failures"]] == ["read weights"]


def test_a_hub_that_cannot_be_reached_is_asked_once_and_by_nobody_who_would_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def give_up(self: object, repository: str, **options: object) -> None:
        asked.append(repository)
        raise ConnectionError("no connection")

    monkeypatch.setattr(HfApi, "model_info", give_up)
    monkeypatch.setattr(import_timm().models, "load_state_dict_from_hf", lambda *location: asked.append("by timm"))
    source = TimmSource()
    for name in ("test_resnet", "test_vit"):
        with pytest.raises(ModelError, match=r"does not answer \(no connection\).* or use --weights random"):
            source.read_weights(name)
    assert asked == ["timm/test_resnet.r160_in1k"]


def test_a_download_that_breaks_off_fails_alone(hub_files: Path, tmp_path: Path) -> None:
    with serve_hub(hub_files, cut_off=True) as endpoint:
        document = hub_search(endpoint, tmp_path, "--models", "timm:test_resnet,zoo:mobilenet-rotation")
    assert [(each["model"], each["phase"]) for each in document["failures"]] == [("timm:test_resnet", "read weights")]
    assert [row["model"] for row in document["ranking"]] == ["zoo:mobilenet-rotation"]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of every kind."""
    root = tmp_path_factory.mktemp("on disk")
    return {
        "text": write_encoder(root / "hub" / "org" / "bert-small"),
        "another": write_encoder(root / "hub" / "org" / "bert-small@v1", seed=1),
        "closed": write_encoder(root / "hub" / "org" / "closed"),
        "image": write_vit(root / "a vision model"),
        "timm": write_timm(root / "a timm model"),
    }


@pytest.mark.parametrize("kind", ["text", "image", "timm"])
def test_a_folder_is_a_model_like_all_others(kind: str, on_disk: dict[str, Path]) -> None:
    (model,) = find_models([f"file:{on_disk[kind]}"])
    source = SOURCES[model.source]
    (card,) = describe_models([model])
    network = source.build(model.name, source.read_weights(model.name))
    assert card.model == str(model)
    assert card.num_parameters == network.num_parameters
    assert modality_of(network.preprocessing) == card.modality
    if isinstance(network.preprocessing, Tokenising):
        inputs, _ = tokenise([("the cat sat",), ("dogs ran far away",)], network.preprocessing)
        first: Any = {name: tensor[:1] for name, tensor in inputs.items()}
        assert card.max_tokens == network.preprocessing.max_tokens
    else:
        assert card.input_size == network.preprocessing.input_size
        inputs = random_images(network.preprocessing.input_size)  # type: ignore[assignment]
        first = inputs[:1]  # type: ignore[index]
    with torch.inference_mode():
        both, single = network.extract(inputs), network.extract(first)
    assert both.shape == (2, both.shape[1])
    torch.testing.assert_close(both[:1], single, rtol=1e-4, atol=1e-5)


def test_the_hub_is_reached_as_its_client_is_told_to(on_disk: dict[str, Path], tmp_path: Path) -> None:
    """Endpoint, cache and offline mode by the client's own variables; a revision, a gated model, and the same from disk."""
    hub = on_disk["text"].parents[1]
    names = ["hf:org/bert-small", "hf:org/bert-small@v1"]
    local = [f"file:{on_disk['text']}", f"file:{on_disk['another']}"]
    asked = ["hf:org/bert-*", names[1], "hf:org/closed", *local]
    with serve_hub(hub, gated=["org/closed"]) as endpoint:
        online = hub_search(endpoint, tmp_path, "--models", ",".join(asked), data="sms")
    scores = {row["model"]: row["scores"] for row in online["ranking"]}
    assert set(scores) == {*names, *local}
    assert scores[names[0]] == scores[local[0]] != scores[names[1]] == scores[local[1]]
    assert [(each["model"], each["phase"]) for each in online["failures"]] == [("hf:org/closed", "read weights")]
    assert "gated" in online["failures"][0]["error"]
    down = hub_search("http://127.0.0.1:9", tmp_path, "--models", ",".join(names), "--run", "down", data="sms")
    assert {row["model"]: row["scores"] for row in down["ranking"]} == {name: scores[name] for name in names}
