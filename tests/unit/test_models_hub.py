"""The hub, through its real client, against a small one on loopback."""

import errno
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hub import serve_hub
from modelhound.data.tokenising import tokenise
from modelhound.errors import ModelError
from modelhound.models.hub import HubSource
from modelhound.settings import ModelSettings
from tiny_encoders import write_encoder, write_timm, write_tokenizer

NOWHERE = "http://127.0.0.1:9"
TEXTS = [("the cat sat on a mat",), ("dogs ran far away",)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hub holds; no test changes it."""
    root = tmp_path_factory.mktemp("hub")
    write_encoder(root / "org" / "bert-small")
    write_encoder(root / "org" / "bert-small@v1", seed=1)
    write_encoder(root / "org" / "bert-wide", hidden_size=64)
    write_encoder(root / "other" / "roberta-small", "roberta")
    write_timm(root / "org" / "resnet-own")
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub-cache"


def features(source: HubSource, name: str, **options: Any) -> torch.Tensor:
    network = source.build(name, source.read_weights(name), ModelSettings(**options))
    tokens, _ = tokenise(TEXTS, network.preprocessing)  # type: ignore[arg-type]
    with torch.inference_mode():
        return network.extract(tokens)


def files_in(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("models--*/snapshots/*/*")}


def test_a_model_is_fetched_once_and_then_comes_from_the_cache(root: Path, cache: Path) -> None:
    asked: list[str] = []
    with serve_hub(root, asked=asked) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        assert source.find("org/bert-small") == ("org/bert-small",)
        fetched = features(source, "org/bert-small")
        commit = source.stamp("org/bert-small")
    assert len([each for each in asked if each.startswith("GET") and "model.safetensors" in each]) == 1
    assert len([each for each in asked if "/api/" in each]) == 1
    offline = HubSource(endpoint=NOWHERE, cache=cache)
    assert offline.find("org/bert-small") == ("org/bert-small",)
    assert offline.stamp("org/bert-small") == commit
    torch.testing.assert_close(features(offline, "org/bert-small"), fetched, rtol=0, atol=0)


def test_revisions_are_branches_tags_and_commits(root: Path, cache: Path) -> None:
    with serve_hub(root) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        main, tag = source.read_weights("org/bert-small"), source.read_weights("org/bert-small@v1")
        commit = source.stamp("org/bert-small@v1")
        pinned = source.read_weights(f"org/bert-small@{commit}")
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(main[name], tag[name])
    assert torch.equal(tag[name], pinned[name])
    assert torch.equal(main[name], load_file(root / "org" / "bert-small" / "model.safetensors")[name])
    offline = HubSource(endpoint=NOWHERE, cache=cache)
    assert torch.equal(offline.read_weights("org/bert-small@v1")[name], tag[name])


def test_a_branch_that_moves_on_is_noticed_by_the_next_search(root: Path, cache: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(root / "org" / "bert-small", own / "org" / "bert-small")
    with serve_hub(own) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        source.find("org/bert-small")
        before = source.stamp("org/bert-small")
        write_encoder(own / "org" / "bert-small", seed=5)
        assert source.stamp("org/bert-small") == before
        source.find("org/bert-small")
        assert source.stamp("org/bert-small") != before


def test_globs_are_matched_against_what_the_hub_lists(root: Path, cache: Path) -> None:
    with serve_hub(root) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        assert source.find("org/bert-*") == ("org/bert-small", "org/bert-wide")
        assert source.find("*/*-small") == ("org/bert-small", "other/roberta-small")
        assert source.find("org/b[a-f]rt-s*@v1") == ("org/bert-small@v1",)
        assert source.find("org/none*") == ()
        assert source.find("org/none") == ()
        assert source.find("not/a/name") == ()
        source.stamp("org/bert-wide")
        source.build("org/bert-wide", None)
    assert source.suggest("") == ["org/bert-wide"]
    assert HubSource(endpoint=NOWHERE, cache=cache).find("org/*") == ("org/bert-wide",)


def test_a_card_says_what_the_files_and_the_hub_say(root: Path, cache: Path) -> None:
    facts = {
        "org/bert-small": {"downloads": 1234, "tags": ["license:mit", "dataset:sms"]},
        "other/roberta-small": {"cardData": {"license": "apache-2.0", "datasets": ["a", "b"]}},
    }
    with serve_hub(root, facts=facts, gated=["org/bert-wide"]) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        bert, roberta = source.describe("org/bert-small"), source.describe("other/roberta-small")
        network = source.build("org/bert-small", None)
        assert source.describe("org/bert-wide").family == "unknown"
    assert (bert.family, bert.licence, bert.downloads, bert.trained_on) == ("bert", "mit", 1234, "sms")
    assert (bert.num_parameters, bert.max_tokens, bert.input_size) == (network.num_parameters, 40, None)
    assert (roberta.licence, roberta.trained_on, roberta.max_tokens) == ("apache-2.0", "a, b", 39)
    assert "model.safetensors" not in files_in(cache)


def test_a_timm_model_on_the_hub_brings_its_own_preprocessing(root: Path, cache: Path) -> None:
    with serve_hub(root) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        card = source.describe("org/resnet-own")
        network = source.build("org/resnet-own", source.read_weights("org/resnet-own"))
    assert (card.family, card.input_size, card.licence, card.trained_on) == (
        "resnet",
        (96, 96),
        "apache-2.0",
        "our_own",
    )
    assert network.preprocessing.mean == (0.1, 0.2, 0.3)  # type: ignore[union-attr]
    assert card.num_parameters == network.num_parameters
    assert network.classify is not None
    with torch.inference_mode():
        assert network.classify(network.extract(torch.rand(2, 3, 96, 96))).shape == (2, 7)


def test_sharded_weights_are_put_together_and_nothing_else_is_fetched(root: Path, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "org" / "sharded"
    shutil.copytree(root / "org" / "bert-small", folder)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: whole[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("pytorch_model.bin", "model.onnx", "run_me.py", "README.md"):
        (folder / name).write_text("not wanted")
    with serve_hub(tmp_path / "own") as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        weights = source.read_weights("org/sharded")
        source.build("org/sharded", weights)
    assert {name: tensor.tolist() for name, tensor in weights.items()} == {
        name: tensor.tolist() for name, tensor in whole.items()
    }
    assert files_in(cache).isdisjoint({"pytorch_model.bin", "model.onnx", "run_me.py", "README.md"})


def test_what_cannot_be_had_says_why_and_what_to_do(root: Path, cache: Path) -> None:
    with serve_hub(root, gated=["org/bert-wide"]) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        assert source.find("org/bert-wide") == ("org/bert-wide",)
        with pytest.raises(
            ModelError, match=rf"gated; accept its conditions at {endpoint}/org/bert-wide, .*hf auth login"
        ):
            source.read_weights("org/bert-wide")
        with pytest.raises(ModelError, match=r"no such model that you may see; check the spelling.*HF_TOKEN"):
            source.read_weights("org/none")
        assert source.find("org/bert-small@v9") == ("org/bert-small@v9",)
        with pytest.raises(ModelError, match="no revision 'v9'; expected a branch, tag or commit"):
            source.read_weights("org/bert-small@v9")


@pytest.mark.parametrize("fault", [{"cut_off": ".safetensors"}, {"wrong_size": ".safetensors"}])
def test_a_download_that_breaks_off_leaves_nothing_behind(
    fault: dict[str, Any], root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client tries again after 1 s, five times
    with serve_hub(root, **fault) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        with pytest.raises(ModelError, match=r"the download of 'model.safetensors' broke off .*start again"):
            source.read_weights("org/bert-small")
    assert "model.safetensors" not in files_in(cache)
    with serve_hub(root) as endpoint:
        assert HubSource(endpoint=endpoint, cache=cache).read_weights("org/bert-small")


def test_a_hub_that_is_down_is_asked_once_in_a_search(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    source = HubSource(endpoint=NOWHERE, cache=cache)
    ask = type(source._hub._api).model_info

    def count(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return ask(*args, **kwargs)

    monkeypatch.setattr(type(source._hub._api), "model_info", count)
    names = ("org/bert-small", "org/bert-wide")
    assert [source.find(name) for name in names] == [(name,) for name in names]
    for name in names:
        with pytest.raises(ModelError, match=r"does not answer .* is not in the cache; .*hf download org/bert-"):
            source.read_weights(name)
    assert len(asked) == 1
    source.find("org/bert-small")
    assert len(asked) == 2
    with pytest.raises(ModelError, match=r"cannot list models of the hub: .* none in the cache"):
        source.find("org/*")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_called_by_its_name(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fill(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    with serve_hub(root) as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", fill)
        with pytest.raises(ModelError, match="the disk is full; free some space, or set HF_HOME"):
            source.read_weights("org/bert-small")


class _RunsCode:
    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> Any:
        return (exec, (f"open({str(self._proof)!r}, 'w')",))


def test_nothing_that_could_run_code_is_unpickled(root: Path, cache: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    folder = tmp_path / "own" / "org" / "evil"
    shutil.copytree(root / "org" / "bert-small", folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _RunsCode(proof)}))
    torch.save({"weight": _RunsCode(proof)}, folder.parent / "zipped.bin")
    with serve_hub(tmp_path / "own") as endpoint:
        with pytest.raises(ModelError, match=r"cannot read weights of hf:org/evil from 'pytorch_model.bin'"):
            HubSource(endpoint=endpoint, cache=cache).read_weights("org/evil")
        (folder / "pytorch_model.bin").write_bytes((folder.parent / "zipped.bin").read_bytes())
        with pytest.raises(
            ModelError, match=r"it also holds .*exec, and to read those is to run code; ask for safetensors"
        ):
            HubSource(endpoint=endpoint, cache=cache).read_weights("org/evil")
        (folder / "pytorch_model.bin").rename(folder / "tf_model.h5")
        with pytest.raises(ModelError, match=r"expected model.safetensors or pytorch_model.bin, found tf_model.h5"):
            HubSource(endpoint=endpoint, cache=cache).read_weights("org/evil")
    assert not proof.exists()


def test_old_checkpoints_are_read_with_weights_only(root: Path, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "org" / "old"
    shutil.copytree(root / "org" / "bert-small", folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with serve_hub(tmp_path / "own") as endpoint, serve_hub(root) as other:
        old = features(HubSource(endpoint=endpoint, cache=cache), "org/old")
        new = features(HubSource(endpoint=other, cache=cache), "org/bert-small")
    assert torch.equal(old, new)


def test_code_of_a_model_is_neither_fetched_nor_run_unless_it_was_named(cache: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    folder = write_encoder(tmp_path / "own" / "org" / "coded")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "coded"
    config["auto_map"] = {"AutoConfig": "coding.CodedConfig", "AutoModel": "coding.CodedModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "coding.py").write_text(
        f"open({str(proof)!r}, 'w')\n"
        "from transformers import BertConfig, BertModel\n"
        "class CodedConfig(BertConfig):\n    model_type = 'coded'\n"
        "class CodedModel(BertModel):\n    config_class = CodedConfig\n"
    )
    with serve_hub(tmp_path / "own") as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        weights = source.read_weights("org/coded")
        with pytest.raises(ModelError, match=r"brings its own code.*add --allow-code org/coded"):
            source.build("org/coded", weights, ModelSettings(allow_code=("org/other",)))
        assert source.describe("org/coded").model == "hf:org/coded"
        assert not proof.exists()
        assert "coding.py" not in files_in(cache)
        network = source.build("org/coded", weights, ModelSettings(allow_code=("org/coded",)))
    assert proof.exists()
    assert type(network.module).__name__ == "CodedModel"


def test_a_repository_of_another_kind_says_what_was_found(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "org" / "words"
    folder.mkdir(parents=True)
    (folder / "words.gguf").write_text("")
    write_tokenizer(tmp_path / "own" / "org" / "bare")
    (tmp_path / "own" / "org" / "bare" / "config.json").write_text('{"hidden_size": 3}')
    with serve_hub(tmp_path / "own") as endpoint:
        source = HubSource(endpoint=endpoint, cache=cache)
        with pytest.raises(ModelError, match=r"expected a config.json of transformers or timm, found words.gguf"):
            source.build("org/words", None)
        with pytest.raises(
            ModelError, match=r"architecture \(timm\) or model_type \(transformers\), found hidden_size"
        ):
            source.build("org/bare", None)
        assert source.describe("org/words").family == "unknown"
