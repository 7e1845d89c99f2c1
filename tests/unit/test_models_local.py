"""Models on disk: folders in the layout of the hub, and single files of weights."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelhound.compat import import_timm
from modelhound.data.tokenising import tokenise
from modelhound.errors import ModelError, UnknownModelError
from modelhound.features.workshop import Specimen, Workshop
from modelhound.models import SOURCES, find_models
from modelhound.models.layout import Layout
from modelhound.models.local import LocalSource
from modelhound.models.timm import TimmSource
from modelhound.settings import ModelSettings
from tiny_encoders import write_encoder, write_timm

SOURCE = LocalSource({"timm": TimmSource()})


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("local") / "bert")


def own_checkpoint(path: Path, architecture: str = "test_resnet", **options: Any) -> torch.nn.Module:
    torch.manual_seed(11)
    module: torch.nn.Module = import_timm().create_model(architecture, **options)
    if path.suffix == ".safetensors":
        save_file(module.state_dict(), path)
    else:
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in module.state_dict().items()}}, path)
    return module.eval()


def test_names_are_paths_and_globs_over_paths(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    shutil.copytree(bert, folder / "bert one")
    own_checkpoint(folder / "net [2].safetensors")
    (folder / "notes.txt").write_text("")
    (folder / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert SOURCE.find("my models/*") == ("my models/bert one", "my models/net [2].safetensors")
    assert SOURCE.find("my models/net [2].safetensors") == ("my models/net [2].safetensors",)
    assert SOURCE.find("~/my models/bert one") == ("~/my models/bert one",)
    assert SOURCE.find(str(folder / "b*")) == (str(folder / "bert one"),)
    assert SOURCE.find("my models/none") == SOURCE.find("") == ()
    assert SOURCE.build("~/my models/bert one", None).num_parameters > 0
    with pytest.raises(UnknownModelError, match=r"did you mean file:my models/bert one"):
        find_models(["file:my models/bert on"])


def test_a_stamp_changes_with_the_files_that_decide_the_features(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    shutil.copytree(bert, folder)
    before = SOURCE.stamp(str(folder))
    (folder / "README.md").write_text("nothing that matters")
    assert SOURCE.stamp(str(folder)) == before
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (folder / name).write_bytes((folder / name).read_bytes() + b" ")
        assert SOURCE.stamp(str(folder)) != before
        before = SOURCE.stamp(str(folder))


def test_a_file_of_weights_needs_to_be_told_its_network(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    own_checkpoint(path)
    for arch in (None, "test_resnet", "zoo:x", "file:x", "timm:"):
        with pytest.raises(ModelError, match=r"expected to be told what network its tensors belong to.*--arch timm:"):
            SOURCE.build(str(path), SOURCE.read_weights(str(path)), ModelSettings(arch=arch))
    path_gone = str(tmp_path / "gone.safetensors")
    with pytest.raises(ModelError, match=r"cannot read file:.*gone.safetensors: no such file or folder"):
        SOURCE.build(path_gone, None, ModelSettings(arch="timm:test_resnet"))
    assert SOURCE.describe(str(path)).num_parameters == sum(each.numel() for each in load_file(path).values())


@pytest.mark.parametrize("name", ["net.safetensors", "net.pth", "net.bin"])
@pytest.mark.parametrize("num_classes", [1000, 7, 0])
def test_the_head_is_made_to_fit_the_file(num_classes: int, name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    module = own_checkpoint(Path(path), num_classes=num_classes)
    network = SOURCE.build(path, SOURCE.read_weights(path), ModelSettings(arch="timm:test_resnet"))
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        expected = module.forward_head(module.forward_features(images), pre_logits=True)  # type: ignore[operator]
        torch.testing.assert_close(network.extract(images), expected)
    assert sum(each.numel() for each in module.parameters()) == network.num_parameters


def test_files_of_one_network_take_turns_in_one_module(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.safetensors", "two.pth")]
    for path, num_classes in zip(paths, (7, 5), strict=True):
        own_checkpoint(path, num_classes=num_classes)
    assert SOURCE.mould(str(paths[0])) is None
    assert SOURCE.mould(str(paths[0]), ModelSettings(arch="zoo:x")) is None
    assert SOURCE.mould(str(paths[0]), ModelSettings(arch="timm:resnet_of_mine")) is None
    assert SOURCE.mould(str(paths[0]), ModelSettings(arch="timm:test_resnet")) is not None

    def take_apart(*chosen: Path) -> list[Specimen]:
        workshop = Workshop(ModelSettings(arch="timm:test_resnet"), seed=0, device="cpu", dtype=torch.float32)
        models = find_models([f"file:{path}" for path in chosen])
        return [workshop.take_apart(model, SOURCES["file"].read_weights(model.name), dict) for model in models]

    (first, second), (alone,) = take_apart(*paths), take_apart(paths[1])
    assert first.blueprint is second.blueprint
    assert (second.fingerprint, second.num_parameters) == (alone.fingerprint, alone.num_parameters)
    assert first.fingerprint != second.fingerprint


def test_models_that_bring_their_own_code_never_share_a_module(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "coded"
    shutil.copytree(bert, folder)
    assert SOURCE.mould(str(folder)) == SOURCE.mould(str(bert)) is not None
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "coding.CodedModel"}}))
    assert SOURCE.mould(str(folder)) is None


def test_a_folder_whose_code_may_run_is_named_as_models_are_or_by_its_path(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "coded"
    shutil.copytree(bert, folder)
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "coding.CodedConfig", "AutoModel": "coding.CodedModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "coded", "auto_map": auto_map}))
    (folder / "coding.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class CodedConfig(BertConfig):\n    model_type = 'coded'\n"
        "class CodedModel(BertModel):\n    config_class = CodedConfig\n"
    )
    weights = SOURCE.read_weights(str(folder))
    with pytest.raises(ModelError, match=r"brings its own code.*add --allow-code"):
        SOURCE.build(str(folder), weights, ModelSettings(allow_code=("file:another",)))
    for named in (str(folder), f"file:{folder}"):
        network = SOURCE.build(str(folder), weights, ModelSettings(allow_code=(named,)))
        assert type(network.module).__name__ == "CodedModel"


def test_tensors_of_another_network_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "net.safetensors")
    own_checkpoint(Path(path), "test_convnext")
    with pytest.raises(
        ModelError, match=r"expected the tensors of timm:test_resnet, found others: missing conv1.0.weight, "
    ):
        SOURCE.build(path, SOURCE.read_weights(path), ModelSettings(arch="timm:test_resnet"))
    with pytest.raises(ModelError, match="expected an architecture of timm, found 'resnet_of_mine'"):
        SOURCE.build(path, SOURCE.read_weights(path), ModelSettings(arch="timm:resnet_of_mine"))
    for tag in (".", ".mine"):  # a network that timm has, with weights that it does not know
        with pytest.raises(ModelError, match=f"expected an architecture of timm, found 'test_convnext\\{tag}'"):
            SOURCE.build(path, SOURCE.read_weights(path), ModelSettings(arch=f"timm:test_convnext{tag}"))
    weights = dict(SOURCE.read_weights(path))
    weights["stem.0.weight"] = torch.zeros(1, 2, 3)
    with pytest.raises(ModelError, match=r"size mismatch for stem.0.weight"):
        SOURCE.build(path, weights, ModelSettings(arch="timm:test_convnext"))


def test_the_network_may_come_from_any_other_source(bert: Path, tmp_path: Path) -> None:
    class Stand:
        """A source whose one model is the folder."""

        def build(self, name: str, weights: Any, settings: ModelSettings) -> Any:
            return Layout(model=f"hf:{name}", folder=bert).build(weights, settings)

    path = tmp_path / "tuned.safetensors"
    tuned = {name: tensor + 0.01 for name, tensor in load_file(bert / "model.safetensors").items()}
    save_file(tuned, path)
    source = LocalSource({"hf": Stand()})  # type: ignore[dict-item]
    network = source.build(str(path), source.read_weights(str(path)), ModelSettings(arch="hf:org/bert"))
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(network.module.state_dict()[name], tuned[name])
    with pytest.raises(
        ModelError, match=r"cannot build file:.*tuned.safetensors as hf:org/bert: cannot load the weights"
    ):
        source.build(str(path), {"other": torch.zeros(1)}, ModelSettings(arch="hf:org/bert"))


def test_a_checkpoint_of_our_own_round_trips(tmp_path: Path) -> None:
    folder = write_timm(tmp_path / "own", num_classes=5)
    network = SOURCES["file"].build(str(folder), SOURCES["file"].read_weights(str(folder)))
    again = tmp_path / "again"
    again.mkdir()
    save_file(network.module.state_dict(), again / "model.safetensors")
    shutil.copy(folder / "config.json", again)
    copy = SOURCES["file"].build(str(again), SOURCES["file"].read_weights(str(again)))
    images = torch.rand(2, 3, 96, 96)
    assert copy.preprocessing == network.preprocessing
    with torch.inference_mode():
        assert torch.equal(copy.extract(images), network.extract(images))


def test_where_a_timm_configuration_says_weights_lie_is_never_followed(tmp_path: Path) -> None:
    folder = write_timm(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"].update({"url": "http://127.0.0.1:9/x", "file": "/etc/hostname", "source": "local-dir"})
    (folder / "config.json").write_text(json.dumps(config))
    network = SOURCE.build(str(folder), SOURCE.read_weights(str(folder)))
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.module.state_dict().items())
    with pytest.raises(ModelError, match="expected tensors, found none"):
        SOURCE.build(str(folder), {})


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "mean"),
        ("nonsense", "mean"),
    ],
)
def test_sentence_transformers_say_how_they_pool(stated: Any, expected: str, bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    shutil.copytree(bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    weights = SOURCE.read_weights(str(folder))
    auto, asked = (SOURCE.build(str(folder), weights, ModelSettings(pooling=each)) for each in ("auto", expected))
    tokens, _ = tokenise([("the cat sat",)], auto.preprocessing)  # type: ignore[arg-type]
    with torch.inference_mode():
        assert torch.equal(auto.extract(tokens), asked.extract(tokens))


def test_damage_is_an_error_that_names_the_file(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    shutil.copytree(bert, folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(ModelError, match=r"from 'model.safetensors': .*damaged"):
        SOURCE.read_weights(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="found no file of weights"):
        SOURCE.read_weights(str(folder))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../secret.safetensors"}}')
    with pytest.raises(ModelError, match=r"expected .* to name .safetensors files beside it"):
        SOURCE.read_weights(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"expected JSON in its config.json"):
        SOURCE.describe(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"expected a config.json of transformers or timm, found .*--arch"):
        SOURCE.build(str(folder), None)
    (tmp_path / "list.pt").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ModelError, match="expected a state_dict, tensors by name, found list"):
        SOURCE.read_weights(str(tmp_path / "list.pt"))


@pytest.mark.parametrize("name", ["x" * 5000, "[" * 5000 + "/b.safetensors", "f\0a/b.safetensors", "\0", "~a\0*"])
def test_a_name_that_no_file_can_have_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UnknownModelError, match="cannot find model"):
        find_models([f"file:{name}"])
    with pytest.raises(UnknownModelError, match="cannot find model"):
        find_models([name])


@pytest.mark.parametrize(
    "stated",
    [
        {"architecture": "test_resnet", "model_args": [1, 2]},
        {"architecture": "test_resnet", "model_args": "all"},
        {"architecture": "test_resnet", "pretrained_cfg": {"mean": "bright"}},
        {"architecture": "test_resnet", "pretrained_cfg": {"crop_pct": [1]}},
        {"architecture": "../elsewhere"},
    ],
)
def test_a_timm_configuration_that_cannot_be_is_refused_in_a_sentence(stated: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ModelError, match="expected"):
        SOURCE.build(str(tmp_path), None)
    for look in (SOURCE.mould, SOURCE.describe):
        with contextlib.suppress(ModelError):  # and no other error: they may not need what is wrong
            look(str(tmp_path))
