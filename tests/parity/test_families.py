"""Of every family of networks the engine makes what the plain path makes, to the last bit.

Its parts, run one by one in a module that other models use too, are the network.
"""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelhound.compat import import_timm, import_transformers
from modelhound.data import Dataset, open_dataset
from modelhound.features import arrange, build_network, extract_features, suitable_batch
from modelhound.features.many import Session
from modelhound.meter import Meter
from modelhound.models import computing, find_models
from modelhound.settings import ModelSettings
from tiny_encoders import FAMILIES, ROTARY, WORDS, write_encoder, write_vit

_TINY_TRANSFORMER: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
TIMM: dict[str, dict[str, Any]] = {
    "test_resnet": {},
    "test_vit": {},
    "test_convnext": {},
    "test_efficientnet": {},
    "test_byobnet": {},
    "test_nfnet": {},
    "mobilenetv2_035": {},
    "mobilenetv3_small_050": {},
    "lcnet_035": {},
    "regnetx_002": {},
    "densenet121": {"growth_rate": 8, "block_config": [2, 2]},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32,
        "window_size": 4,
        "embed_dim": 16,
        "depths": [1, 2],
        "num_heads": [1, 2],
    },
    "gmlp_ti16_224": {"img_size": 32},
    "deit_tiny_patch16_224": _TINY_TRANSFORMER,
    "deit_tiny_distilled_patch16_224": _TINY_TRANSFORMER,
    "deit3_small_patch16_224": _TINY_TRANSFORMER,
    "beit_base_patch16_224": _TINY_TRANSFORMER,
    "eva02_tiny_patch14_224": {**_TINY_TRANSFORMER, "num_heads": 2},
    "vit_small_patch14_dinov2": _TINY_TRANSFORMER,
    "vit_base_patch16_clip_224": _TINY_TRANSFORMER,
    "vit_base_patch16_siglip_224": _TINY_TRANSFORMER,
    "cait_xxs24_224": {**_TINY_TRANSFORMER, "depth_token_only": 1},
    "xcit_nano_12_p8_224": _TINY_TRANSFORMER,
    "poolformer_s12": {"layers": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
    "pvt_v2_b0": {"depths": [1, 1, 1, 1]},
    "edgenext_xx_small": {"depths": [1, 1, 2, 1], "dims": [8, 16, 24, 32]},
    "mobilevit_xxs": {},
}
# In evaluation they make a table of their weights once, and keep it.
KEEP_TABLES: dict[str, dict[str, Any]] = {
    "levit_128s": {"img_size": 32, "embed_dim": [32, 48, 64], "num_heads": [2, 2, 2], "depth": [1, 1, 1]},
    "tiny_vit_5m_224": {
        "embed_dims": [16, 32, 48, 64],
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 2, 2],
        "window_sizes": [4, 4, 2, 1],
    },
}
TORCHVISION = ["mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5"]

_SMALL_ENCODER: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
VISION: dict[str, dict[str, Any]] = {
    "ViTConfig": _SMALL_ENCODER,
    "DeiTConfig": _SMALL_ENCODER,
    "BeitConfig": _SMALL_ENCODER,
    "Dinov2Config": {**_SMALL_ENCODER, "mlp_ratio": 2},
    "CLIPVisionConfig": _SMALL_ENCODER,
    "SiglipVisionConfig": _SMALL_ENCODER,
    "ViTMAEConfig": _SMALL_ENCODER,  # leaves patches out and shuffles them, unless it is told not to
    "HieraConfig": {  # would, in its training
        "image_size": [32, 32],
        "embed_dim": 8,
        "depths": [1, 1, 2],
        "num_heads": [1, 2, 2],
        "num_query_pool": 2,
        "masked_unit_size": [4, 4],
    },
    "SwinConfig": {
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 16,
        "depths": [1, 2],
        "num_heads": [1, 2],
        "window_size": 4,
    },
    "ConvNextConfig": {"depths": [1, 2, 1, 1], "hidden_sizes": [8, 16, 24, 32], "image_size": 32},
    "ResNetConfig": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "embedding_size": 8},
}


@pytest.fixture(params=["torch", "oneDNN"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who multiplies in linear layers, on both paths; layers of tests are small, so all of them count as large."""
    monkeypatch.setattr(computing, "is_mkl_held_back", lambda: request.param == "oneDNN")
    monkeypatch.setattr(computing, "_LEAST_WEIGHTS", 1)
    return str(request.param)


@pytest.fixture(scope="module")
def images() -> Dataset:
    return open_dataset("fashion", limit=20)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Of equal length, so that both paths cut batches in the same places."""
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.csv", num_words=8)


def write_texts(path: Path, *, num_words: int) -> Dataset:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for place in range(20):
            words = [WORDS[(place * step + step) % len(WORDS)] for step in range(1, 1 + num_words)]
            writer.writerow((" ".join(words), place % 2))
    return open_dataset(str(path))


def assert_equal_features(data: Dataset, *models: str, least_parts: int = 2, **options: Any) -> None:
    """By the engine and by the plain path; `least_parts` is into how many parts the engine can cut each network at least."""
    settings = ModelSettings(**options)
    refs = find_models(models)
    found: dict[str, torch.Tensor] = {}
    with Session(data, settings, seed=0, device="cpu", remember=False) as session:
        session.survey(dict.fromkeys(refs, ""), failed=fail)
        specimens = [session.specimens[str(ref)] for ref in refs]
        everything = range(len(data))
        session.run(
            [str(ref) for ref in refs],
            everything,
            everything,
            done=lambda model, rows, keep: found.update({model: rows.features}),
            failed=fail,
        )
    for ref, specimen in zip(refs, specimens, strict=True):
        anatomy = specimen.blueprint.anatomy
        assert len(anatomy.parts) >= least_parts, anatomy.trouble
        weights = None if settings.weights == "random" else _read(ref)
        network = build_network(ref, weights, settings, seed=0)
        assert specimen.num_parameters == network.num_parameters
        arrange(network, "cpu")
        batch = suitable_batch(network.preprocessing, "cpu")
        (plain,) = extract_features(network, data, device="cpu", batch=batch, workers=0, meter=Meter()).layers
        assert torch.equal(found[str(ref)], plain.features), ref
        assert float(plain.features.std(0).max()) > 0  # or everything would be equal


def _read(ref: Any) -> Any:
    from modelhound.models import source_of

    return source_of(ref).read_weights(ref.name)


def fail(model: str, phase: str, error: Exception) -> None:
    raise AssertionError(f"{model} in {phase}") from error


@pytest.mark.parametrize("architecture", TIMM)
def test_networks_of_timm_are_equal_to_the_last_bit(tmp_path: Path, images: Dataset, architecture: str) -> None:
    assert_equal_features(images, f"file:{write_drawn(tmp_path, architecture, TIMM[architecture])}")


@pytest.mark.parametrize("architecture", KEEP_TABLES)
def test_a_table_that_a_network_keeps_of_its_weights_is_not_used_for_its_near_copy(
    tmp_path: Path, images: Dataset, architecture: str
) -> None:
    one, other = (write_drawn(tmp_path / name, architecture, KEEP_TABLES[architecture]) for name in ("one", "other"))
    weights = load_file(other / "model.safetensors")
    turned = {name: -each for name, each in weights.items() if name.endswith("attention_biases")}
    assert turned
    save_file(weights | turned, other / "model.safetensors")
    assert_equal_features(images, f"file:{one}", f"file:{other}")


def write_drawn(folder: Path, architecture: str, options: dict[str, Any]) -> Path:
    """A network of timm, drawn so that all of its tensors matter, in a folder."""
    torch.manual_seed(0)
    module = import_timm().create_model(architecture, num_classes=3, **options)
    for parameter in module.parameters():
        if parameter.ndim > 1:  # as drawn for training, small images hardly make a difference to some networks
            torch.nn.init.kaiming_normal_(parameter, nonlinearity="linear")
        elif not parameter.any():  # such as what makes a block add nothing before it is trained
            torch.nn.init.normal_(parameter, std=0.5)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), folder / "model.safetensors")
    fed = {"input_size": [3, 32, 32], "crop_pct": 1.0, "num_classes": 3}
    config = {"architecture": architecture, "num_classes": 3, "model_args": options, "pretrained_cfg": fed}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", TORCHVISION)
def test_networks_of_torchvision_are_too(images: Dataset, name: str) -> None:
    assert_equal_features(images.select(range(4)), f"tv:{name}", weights="random")


@pytest.mark.parametrize("name", VISION)
def test_vision_models_of_transformers_are_too(tmp_path: Path, images: Dataset, name: str) -> None:
    transformers = import_transformers()
    torch.manual_seed(0)
    transformers.AutoModel.from_config(getattr(transformers, name)(**VISION[name])).save_pretrained(tmp_path)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.2, 0.2],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert_equal_features(images, f"file:{tmp_path}")


@pytest.mark.parametrize("family", FAMILIES)
def test_text_encoders_are_too_where_batches_are_cut_in_the_same_places(
    tmp_path: Path, texts: Dataset, family: str
) -> None:
    write_encoder(tmp_path, family)
    assert_equal_features(texts, f"file:{tmp_path}", least_parts=1 if family == "albert" else 2)


@pytest.mark.parametrize("family", ["mpnet", "gpt2", "bart", *ROTARY])
def test_parts_of_siblings_have_the_positions_that_a_module_of_its_own_tells_them(
    tmp_path: Path, texts: Dataset, family: str
) -> None:
    """It is asked for each part anew, also where the trunk has run and only the ends differ."""
    one, other = write_siblings(tmp_path, family)
    assert_equal_features(texts, f"file:{one}", f"file:{other}")


@pytest.mark.parametrize("family", ["llama", "mpnet", "deberta-v2"])
def test_parts_of_siblings_take_texts_of_any_length_where_few_tokens_are_asked_for(tmp_path: Path, family: str) -> None:
    short = write_texts(tmp_path / "short.csv", num_words=3)
    one, other = write_siblings(tmp_path, family)
    assert_equal_features(short, f"file:{one}", f"file:{other}", tokens=8)


def write_siblings(folder: Path, family: str) -> tuple[Path, Path]:
    """Two that differ in their last layer only."""
    one = write_encoder(folder / "one", family)
    other = shutil.copytree(one, folder / "other")
    tensors = load_file(one / "model.safetensors")
    last = [name for name, each in tensors.items() if ".2." in name and each.ndim > 1 and "decoder" not in name][-1]
    save_file({**tensors, last: tensors[last] + 1}, other / "model.safetensors", metadata={"format": "pt"})
    return one, other


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}),  # a buffer that no file holds
        ("albert", {"num_hidden_layers": 1}),  # how often it calls its one layer
    ],
)
def test_networks_that_differ_in_their_configuration_alone_are_kept_apart(
    tmp_path: Path, texts: Dataset, family: str, changes: dict[str, Any]
) -> None:
    one, other = write_encoder(tmp_path / "one", family), write_encoder(tmp_path / "other", family, **changes)
    assert_equal_features(texts, f"file:{one}", f"file:{other}", least_parts=1)


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ({}, {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}),
        ({"position_embedding_type": "absolute", "output_past": True, "tokenizer_class": "BertTokenizer"}, {}),
        ({"backbone_config": {"_name_or_path": "elsewhere", "width": 3}}, {}),
    ],
    ids=["of tensors", "of entries", "of a part"],
)
def test_names_that_an_earlier_version_wrote_down_take_nothing_from_what_near_copies_share(
    tmp_path: Path, texts: Dataset, entries: dict[str, Any], names: dict[str, str]
) -> None:
    one, other = write_siblings(tmp_path, "bert")
    config = json.loads((one / "config.json").read_text())
    if "backbone_config" in entries:
        (one / "config.json").write_text(json.dumps({**config, "backbone_config": {"width": 3}}))
    (other / "config.json").write_text(json.dumps({**config, **entries}))
    tensors = load_file(other / "model.safetensors")
    for name, before in names.items():
        tensors = {each.replace(name, before): tensor for each, tensor in tensors.items()}
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    refs = find_models([f"file:{one}", f"file:{other}"])
    with Session(texts, ModelSettings(), seed=0, device="cpu", remember=False) as session:
        session.survey(dict.fromkeys(refs, ""), failed=fail)
        first, second = (session.specimens[str(ref)] for ref in refs)
    shared = [mine == theirs for mine, theirs in zip(first.fingerprints, second.fingerprints, strict=True)]
    assert shared == [True, True, True, False, True], (
        "of embeddings, three layers and the pooler the last layer differs"
    )


def test_a_model_with_a_trained_pooler_keeps_it_beside_one_without(tmp_path: Path, images: Dataset) -> None:
    one, other = write_vit(tmp_path / "one", with_pooler=False), write_vit(tmp_path / "other")
    assert_equal_features(images, f"file:{one}", f"file:{other}")
