"""Text encoders and vision models of transformers: pooling, layers, weights, and what is refused."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modelhound.compat import import_transformers
from modelhound.data import Preprocessing
from modelhound.data.preprocessing import make_transform
from modelhound.data.tokenising import fingerprint_tokenizer, tokenise
from modelhound.errors import ModelError
from modelhound.models.encoders import Encoder, build_encoder, describe_encoder
from modelhound.models.source import Network
from modelhound.settings import ModelSettings
from tiny_encoders import FAMILIES, WORDS, write_encoder, write_tokenizer, write_vit

TEXTS = [("the cat sat on a mat",), ("dogs",), ("then it all came back for tea with milk and some dogs ran far away",)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {family: write_encoder(root / family, family) for family in FAMILIES}


def build(folder: Path, **options: Any) -> Network:
    weights = load_file(folder / "model.safetensors")
    return build_encoder(Encoder(model="file:it", folder=folder), weights, ModelSettings(**options))


def extract(network: Network, texts: list[tuple[str, ...]] = TEXTS) -> torch.Tensor:
    tokens, _ = tokenise(texts, network.preprocessing)  # type: ignore[arg-type]
    with torch.inference_mode():
        return network.extract(tokens)


def hidden_states(
    folder: Path, network: Network, texts: list[tuple[str, ...]]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What transformers itself says of every layer, from a model that it loaded itself; and the mask."""
    transformers = import_transformers()
    is_t5 = folder.name == "t5"
    module = (transformers.T5EncoderModel if is_t5 else transformers.AutoModel).from_pretrained(folder).eval()
    module = module.get_encoder() if folder.name == "bart" else module
    tokens, _ = tokenise(texts, network.preprocessing)  # type: ignore[arg-type]
    mask = tokens["attention_mask"]
    inputs: dict[str, Any] = {"input_ids": tokens["input_ids"], "attention_mask": mask}  # all of the first kind
    if folder.name == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(mask).index_fill(1, torch.tensor([0]), 1)
    with torch.inference_mode():
        states = module(**inputs, output_hidden_states=True).hidden_states
    return list(states[1:]), mask


def pooled(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Item by item, with the padding cut off."""
    rows = []
    for item, length in zip(hidden, mask.sum(dim=1).tolist(), strict=True):
        kept = item[:length]
        rows.append({"mean": kept.mean(dim=0), "cls": kept[0], "max": kept.max(dim=0).values}[pooling])
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_is_what_transformers_says_it_is(family: str, folders: dict[str, Path]) -> None:
    folder = folders[family]
    networks = {layers: build(folder, layers=layers) for layers in ("last", "mean", "best")}
    states, mask = hidden_states(folder, networks["last"], TEXTS)
    expected = torch.stack([pooled(state, mask, "mean") for state in states], dim=1)
    assert expected.shape == (3, 3, 32)
    assert not torch.allclose(expected[:, 0], expected[:, 1], atol=1e-3)
    torch.testing.assert_close(extract(networks["best"]), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(extract(networks["mean"]), expected.mean(dim=1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(extract(networks["last"]), expected[:, -1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_padding_takes_no_part_in_pooling(family: str, pooling: str, folders: dict[str, Path]) -> None:
    network = build(folders[family], pooling=pooling)
    states, mask = hidden_states(folders[family], network, TEXTS)
    together = extract(network)
    torch.testing.assert_close(together, pooled(states[-1], mask, pooling), rtol=1e-5, atol=1e-5)
    assert together.untyped_storage().nbytes() == together.nbytes  # and keeps nothing alive
    alone = torch.cat([extract(network, [text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", ["mean", "best"])
def test_no_more_than_two_hidden_states_live_at_a_time(layers: str, tmp_path: Path) -> None:
    network = build(write_encoder(tmp_path / "deep", num_hidden_layers=8), layers=layers)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def count(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal most
        alive.append(weakref.ref(output[0] if isinstance(output, tuple) else output))
        most = max(most, sum(each() is not None for each in alive))

    for block in network.module.encoder.layer:  # type: ignore[union-attr]
        block.register_forward_hook(count)
    assert extract(network).shape == ((3, 32) if layers == "mean" else (3, 8, 32))
    assert len(alive) == 8
    assert most <= 2


def test_a_stack_of_layers_that_cannot_be_told_apart_is_refused(folders: dict[str, Path]) -> None:
    from modelhound.models.pooling import text_features

    transformers = import_transformers()
    config = transformers.XLMConfig(vocab_size=30, emb_dim=32, n_layers=2, n_heads=4)
    with pytest.raises(ModelError, match=r"cannot tell the layers of XLMModel apart: .* use --layers last"):
        text_features(transformers.XLMModel(config).eval(), pooling="mean", layers="best")


def test_heads_and_prefixes_of_a_checkpoint_do_not_matter(folders: dict[str, Path]) -> None:
    folder = folders["bert"]
    weights = load_file(folder / "model.safetensors")
    headed = {f"bert.{name}": tensor for name, tensor in weights.items() if not name.startswith("pooler")}
    headed["cls.predictions.bias"] = torch.zeros(28)
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in weights.items()}  # fmt: skip
    expected = extract(build(folder))
    for variant in (headed, old, {name: tensor.half() for name, tensor in weights.items()}):
        network = build_encoder(Encoder(model="file:it", folder=folder), variant, ModelSettings())
        assert {parameter.dtype for parameter in network.module.parameters()} == {torch.float32}
        torch.testing.assert_close(extract(network), expected, rtol=1e-2, atol=1e-2)


def test_tensors_that_do_not_fit_are_named(folders: dict[str, Path]) -> None:
    encoder = Encoder(model="file:it", folder=folders["bert"])
    weights = load_file(folders["bert"] / "model.safetensors")
    lacking = {name: tensor for name, tensor in weights.items() if "layer.2" not in name}
    with pytest.raises(ModelError, match=r"found no encoder.layer.2.attention.*, no .* and 13 more; .*another model"):
        build_encoder(encoder, lacking, ModelSettings())
    wide = {**weights, "encoder.layer.0.output.dense.weight": torch.zeros(3, 5)}
    with pytest.raises(ModelError, match=r"encoder.layer.0.output.dense.weight is 3x5, not 32x48"):
        build_encoder(encoder, wide, ModelSettings())
    t5_without_decoder = Encoder(model="file:it", folder=folders["t5"])
    whole = load_file(folders["t5"] / "model.safetensors")
    encoder_only = {name: tensor for name, tensor in whole.items() if not name.startswith("decoder.")}
    assert len(encoder_only) < len(whole)
    assert build_encoder(t5_without_decoder, encoder_only, ModelSettings()).num_parameters > 0


def test_random_weights_follow_the_seed(folders: dict[str, Path]) -> None:
    encoder = Encoder(model="file:it", folder=folders["roberta"])
    rows = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        rows.append(extract(build_encoder(encoder, None, ModelSettings())))
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2], atol=1e-2)


@pytest.mark.parametrize(
    ("family", "limit"),
    # RoBERTa and its kin lose the positions up to the padding's own; MPNet's padding is always 1; T5 has no limit
    [("bert", 40), ("roberta", 39), ("longformer", 39), ("mpnet", 38), ("gpt2", 40), ("bart", 40), ("t5", 512)],
)
def test_texts_are_cut_to_what_the_model_has_positions_for(family: str, limit: int, folders: dict[str, Path]) -> None:
    encoder = Encoder(model="file:it", folder=folders[family])
    network = build(folders[family])
    assert describe_encoder(encoder).max_tokens == network.preprocessing.max_tokens == limit  # type: ignore[union-attr]
    assert describe_encoder(encoder).num_parameters == network.num_parameters
    tokens, num_truncated = tokenise([("cat " * 1000,), ("cat " * (limit - 2),)], network.preprocessing)  # type: ignore[arg-type]
    assert (tokens["input_ids"].shape, num_truncated) == ((2, limit), 1)
    with torch.inference_mode():
        assert network.extract(tokens).isfinite().all()
    assert build(folders[family], tokens=6).preprocessing.max_tokens == 6  # type: ignore[union-attr]


def test_the_tokenizer_has_a_say_in_how_long_texts_may_be(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "it", tokenizer=False)
    write_tokenizer(folder, model_max_length=16)
    assert build(folder).preprocessing.max_tokens == 16  # type: ignore[union-attr]


def test_pairs_of_texts_are_told_apart(folders: dict[str, Path]) -> None:
    network = build(folders["bert"])
    pair = extract(network, [("the cat", "dogs ran")])
    tokens, _ = tokenise([("the cat", "dogs ran")], network.preprocessing)  # type: ignore[arg-type]
    assert tokens["token_type_ids"].sum() == 3
    flat = {**tokens, "token_type_ids": torch.zeros_like(tokens["token_type_ids"])}
    with torch.inference_mode():
        assert not torch.allclose(network.extract(flat), pair, atol=1e-3)
    assert extract(build(folders["roberta"]), [("the cat", "dogs ran")]).isfinite().all()


def test_texts_without_any_token_get_one(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = write_encoder(tmp_path / "it", "gpt2")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = None  # type: ignore[assignment]
    import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", padding_side="left"
    ).save_pretrained(folder)
    network = build(folder)
    tokens, _ = tokenise([("",), ("the cat",)], network.preprocessing)  # type: ignore[arg-type]
    assert tokens["attention_mask"].tolist() == [[1, 0], [1, 1]]
    assert extract(network, [("",), (" ",)]).isfinite().all()


def test_half_a_character_does_not_stop_a_tokenizer(folders: dict[str, Path]) -> None:
    network = build(folders["bert"])
    assert torch.equal(extract(network, [("cat \ud83d",)]), extract(network, [("cat ?",)]))


def test_a_tokenizer_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "small", vocab_size=20)
    with pytest.raises(
        ModelError, match=r"expected a tokenizer with ids below 20, .* but 'milk' is 27; copy the tokenizer"
    ):
        build(folder)
    none = write_encoder(tmp_path / "none", tokenizer=False)
    with pytest.raises(
        ModelError, match=r"cannot feed file:it: cannot find a tokenizer .*expected one of tokenizer.json"
    ):
        build(none)
    (none / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot feed file:it: cannot load the tokenizer"):
        build(none)


def test_the_same_tokenizer_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    prints = []
    for place, words in (("a", WORDS), ("b", WORDS), ("c", WORDS[::-1])):
        write_tokenizer(tmp_path / place, words)
        prints.append(fingerprint_tokenizer(tmp_path / place))
    assert prints[0] == prints[1] != prints[2]


def test_a_vision_model_is_fed_and_pooled_as_it_was_trained(tmp_path: Path) -> None:
    folder = write_vit(tmp_path / "vit")
    network = build(folder)
    assert network.preprocessing == Preprocessing(
        input_size=(32, 32), interpolation="bicubic", crop_fraction=1.0, crop_mode="squash",
        mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2),
    )  # fmt: skip
    assert describe_encoder(Encoder(model="file:it", folder=folder)).input_size == (32, 32)
    images = torch.rand(2, 3, 32, 32)
    module = import_transformers().ViTModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        output = module(pixel_values=images)
        torch.testing.assert_close(network.extract(images), output.pooler_output)
        # without weights for it, the pooler is noise: the class token stands in
        headless = build(write_vit(tmp_path / "headless", with_pooler=False))
        torch.testing.assert_close(headless.extract(images), output.last_hidden_state[:, 0])


@pytest.mark.parametrize(
    ("processor", "fraction", "mode", "size"),
    [
        ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40}, "do_center_crop": True,
          "crop_size": {"height": 32, "width": 32}}, 0.8, "center", (32, 32)),
        ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}, "crop_pct": 0.875},
         0.875, "center", (32, 32)),
        ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}, "crop_pct": 0.875},
         1.0, "squash", (384, 384)),
    ],
)  # fmt: skip
def test_image_processors_become_our_own_steps(
    processor: dict[str, Any], fraction: float, mode: str, size: tuple[int, int], tmp_path: Path
) -> None:
    form = build(write_vit(tmp_path / "vit", **processor)).preprocessing
    assert isinstance(form, Preprocessing)
    assert (form.crop_fraction, form.crop_mode, form.input_size) == (pytest.approx(fraction), mode, size)


def test_images_are_brought_to_the_very_size_that_the_processor_names(tmp_path: Path) -> None:
    """40 / 53 is rounded, and 40 divided by that is a hair less than 53: cut off, it would be one pixel short."""
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 53},
        "do_center_crop": True,
        "crop_size": {"height": 40, "width": 40},
    }
    form = build(write_vit(tmp_path / "vit", **processor)).preprocessing
    assert isinstance(form, Preprocessing)
    assert make_transform(form).transforms[0].size == 53  # type: ignore[attr-defined]


def test_models_that_take_neither_texts_nor_images_are_refused(tmp_path: Path) -> None:
    import_transformers().CLIPConfig().save_pretrained(tmp_path / "clip")
    with pytest.raises(ModelError, match="expected a model of texts or of images, CLIPModel takes texts and images"):
        describe_encoder(Encoder(model="file:it", folder=tmp_path / "clip"))
    folder = write_vit(tmp_path / "vit")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"expected preprocessor_config.json or processor_config.json"):
        build(folder)
