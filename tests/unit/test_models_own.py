"""A user's own network, named by its function."""

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

import modelhound
from modelhound.data import OwnTransform, Preprocessing
from modelhound.errors import ModelError, UnknownModelError
from modelhound.models import ModelRef, describe_models, find_models, source_of, stamp_own
from modelhound.settings import ModelSettings

CODE = """
import numpy
import torch
from torch import nn

def make(pretrained=True):
    torch.manual_seed(3 if pretrained else 4)
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 5)), {"input_size": 40, "mean": (0.5,) * 3}

def fixed():
    module = nn.Flatten()
    module.preprocessing = {"input_size": (3, 8, 8)}
    return module

def shrink(image):
    return torch.tensor(numpy.asarray(image.resize((6, 6)))).permute(2, 0, 1) / 255

def with_transform():
    return nn.Flatten(), shrink

def moody(image):
    if image.size != (640, 480):  # that of the one it is tried on when it is built
        raise ValueError("too dark for me")
    return torch.zeros(3, 6, 6)

def with_moody_transform():
    return nn.Flatten(), moody

def bare():
    return nn.Flatten()

def wrong():
    return 17

def failing():
    raise KeyError("no such thing")

def leaving():
    raise SystemExit(2)
"""


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path) -> Path:
    """Written into the working directory, under a name of its own: modules are imported once per process."""
    file = Path.cwd() / f"mine_{tmp_path.parent.name.replace('-', '_')}_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(CODE)
    return file


def test_a_module_and_its_preprocessing_come_from_the_function(user_code: Path) -> None:
    (model,) = find_models([f"py:{user_code.stem}:make"])
    source = source_of(model)
    network = source.build(model.name, source.read_weights(model.name))
    assert isinstance(network.preprocessing, Preprocessing)
    assert network.preprocessing.input_size == (40, 40)
    assert network.preprocessing.mean == (0.5, 0.5, 0.5)
    assert network.extract(torch.rand(2, 3, 40, 40)).shape == (2, 5)
    drawn = source.build(model.name, None)
    assert not torch.equal(drawn.module[2].weight, network.module[2].weight)  # type: ignore[index]
    (card,) = describe_models([model])
    assert (card.num_parameters, card.input_size) == (48 * 5 + 5, (40, 40))


def test_a_file_can_be_named_by_its_path(user_code: Path) -> None:
    (model,) = find_models([f"py:{user_code}:fixed"])
    assert source_of(model).build(model.name, {}).preprocessing.input_size == (8, 8)  # type: ignore[union-attr]


def test_any_function_of_an_image_is_a_preprocessing(user_code: Path) -> None:
    (model,) = find_models([f"py:{user_code.stem}:with_transform"])
    form = source_of(model).build(model.name, {}).preprocessing
    assert isinstance(form, OwnTransform)
    assert form.input_size == (6, 6)
    assert form.transform(Image.new("RGB", (20, 30), "red")).amax((1, 2)).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("bare", "expected its preprocessing"),
        ("wrong", "expected an nn.Module"),
        ("failing", "KeyError"),
        ("leaving", "SystemExit: 2"),
        ("absent", "absent"),
    ],
)
def test_what_cannot_be_used_says_why(user_code: Path, function: str, expected: str) -> None:
    (model,) = find_models([f"py:{user_code.stem}:{function}"])
    with pytest.raises(ModelError, match=expected):
        source_of(model).read_weights(model.name)


def test_random_weights_need_a_parameter_named_pretrained(user_code: Path) -> None:
    (model,) = find_models([f"py:{user_code.stem}:fixed"])
    with pytest.raises(ModelError, match="pretrained"):
        source_of(model).build(model.name, None)


@pytest.mark.parametrize("reference", ["py:nowhere_at_all:make", "py:nowhere.py:make", "py:make", "py:"])
def test_a_place_that_does_not_exist_is_no_model(reference: str) -> None:
    with pytest.raises(UnknownModelError):
        find_models([reference])


@pytest.mark.parametrize("begins", ["1 / 0", "this is no Python", "raise KeyError('settings')"])
def test_a_package_that_cannot_be_imported_is_told_as_such(
    begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"package_{abs(hash(begins))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(begins)
    (tmp_path / package / "nets.py").write_text("def make(): ...")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=rf"^cannot load py:{package}\.nets: (ZeroDivision|Syntax|Key)Error"):
        find_models([f"py:{package}.nets:make"])


def test_a_search_ranks_own_networks_beside_others(user_code: Path) -> None:
    result = modelhound.search(
        "digits", [f"py:{user_code.stem}:{name}" for name in ("make", "fixed", "with_transform", "failing")], limit=60
    )
    assert {row.model.rpartition(":")[2] for row in result.ranking.models} == {"make", "fixed", "with_transform"}
    assert [failure.model.rpartition(":")[2] for failure in result.failures] == ["failing"]


def test_the_stamp_follows_the_file(user_code: Path) -> None:
    (model,) = find_models([f"py:{user_code.stem}:make"])
    before = source_of(model).stamp(model.name)
    user_code.write_text(CODE + "\n")
    assert source_of(model).stamp(model.name) != before


def test_files_of_one_name_in_two_folders_are_two_networks_and_an_edited_one_is_a_third(tmp_path: Path) -> None:
    files = [tmp_path / folder / "net.py" for folder in ("first", "second")]
    for file, size in zip(files, (8, 6), strict=True):
        file.parent.mkdir()
        file.write_text(f"from torch import nn\n\ndef make():\n    return nn.Flatten(), {{'input_size': {size}}}\n")

    def sizes() -> list[tuple[int, int]]:
        models = find_models([f"py:{file}:make" for file in files])
        return [source_of(model).build(model.name, {}).preprocessing.input_size for model in models]  # type: ignore[union-attr]

    assert sizes() == [(8, 8), (6, 6)]
    files[1].write_text(files[1].read_text().replace("6", "7"))
    assert sizes() == [(8, 8), (7, 7)]


def test_a_module_that_was_edited_since_it_was_loaded_is_refused_until_it_is_loaded_anew(
    user_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(user_code.parent)
    (model,) = find_models([f"py:{user_code.stem}:make"])
    source_of(model).read_weights(model.name)
    user_code.write_text(CODE.replace("Linear(48, 5)", "Linear(48, 50)"))
    with pytest.raises(ModelError, match="it was edited"):
        source_of(model).read_weights(model.name)
    importlib.reload(sys.modules[user_code.stem])
    assert len(source_of(model).read_weights(model.name)["2.bias"]) == 50


@pytest.mark.parametrize("plain", [True, False])
def test_a_transform_that_can_neither_be_hashed_nor_compared_is_one_like_any_other(tmp_path: Path, plain: bool) -> None:
    file = tmp_path / "counted.py"
    file.write_text(
        CODE
        + """
class Counted:
    __hash__ = None
    def __eq__(self, other):
        raise ValueError("which of the numbers?")
    def __call__(self, image):
        return shrink(image)

def one():
    return nn.Flatten(), Counted()

def two():
    return nn.Flatten(), Counted()
"""
    )
    models = [f"py:{file}:{function}" for function in ("one", "two", "with_transform")]
    result = modelhound.search("digits", models, limit=40, scorers="ridge", workers=0, plain=plain)
    assert not result.failures
    assert len({row.score for row in result.ranking.models}) == 1


def test_transforms_that_look_alike_are_not_taken_for_one_another_now_or_later(tmp_path: Path) -> None:
    file = tmp_path / "alike.py"
    file.write_text(
        CODE
        + """
class Alike:
    def __init__(self, function):
        self.function = function
    def __repr__(self):
        return "Alike()"
    def __call__(self, image):
        return self.function(shrink(image))

def bright():
    return nn.Flatten(), Alike(lambda pixels: pixels)

def blind():
    return nn.Flatten(), Alike(lambda pixels: 0 * pixels + torch.rand(3, 6, 6))
"""
    )
    models = [f"py:{file}:{name}" for name in ("bright", "blind")]
    result = modelhound.search("digits", models, limit=60, scorers="ridge", run=tmp_path / "run")
    assert result.failures == ()
    found = {row.model.rpartition(":")[2]: row.scores["ridge"] for row in result.ranking.models}
    assert found["bright"] > found["blind"] + 0.2
    assert not list((tmp_path / "cache" / "features").rglob("rows-*"))  # nobody could tell later that they are the same


def test_functions_of_one_file_can_be_made_by_several_threads_at_once(tmp_path: Path) -> None:
    file = tmp_path / f"slow_{tmp_path.parent.name.replace('-', '_')}.py"
    file.write_text("import time\ntime.sleep(0.3)\n" + CODE)  # the others come while it is half run
    (model,) = find_models([f"py:{file}:fixed"])
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: source_of(model).read_weights(model.name), range(4)))
    assert len(found) == 4


def test_only_models_in_ones_own_files_have_a_stamp_that_edits_change(tmp_path: Path) -> None:
    file = tmp_path / "networks.py"
    file.write_text("def make(): ...\n")
    own = ModelRef("py", f"{file}:make")
    before = stamp_own(own)
    assert before == source_of(own).stamp(own.name) != ""
    file.write_text("def make(): pass  # quicker now\n")
    assert stamp_own(own) != before
    assert stamp_own(ModelRef("zoo", "resnet-shapes")) == ""
    assert stamp_own(ModelRef("file", str(tmp_path / "gone.safetensors"))) == ""  # whoever builds it says so


def test_tensors_of_a_file_are_stamped_with_the_code_that_they_go_into(user_code: Path, tmp_path: Path) -> None:
    file, other = ModelRef("file", str(tmp_path / "own.pt")), ModelSettings(arch=f"py:{user_code}:make")
    torch.save(source_of(ModelRef("py", "")).read_weights(f"{user_code}:make"), tmp_path / "own.pt")
    alone, before = source_of(file).stamp(file.name), source_of(file).stamp(file.name, other)
    assert before == stamp_own(file, other) != alone
    assert source_of(file).stamp(file.name, ModelSettings(arch="timm:resnet18")) == alone
    user_code.write_text(CODE + "# edited")
    assert source_of(file).stamp(file.name) == alone
    assert source_of(file).stamp(file.name, other) not in (alone, before)


def test_a_search_with_edited_code_around_the_same_tensors_runs_it(user_code: Path, tmp_path: Path) -> None:
    torch.save(source_of(ModelRef("py", "")).read_weights(f"{user_code}:make"), tmp_path / "own.pt")
    options = {"limit": 60, "scorers": "ridge", "arch": f"py:{user_code}:make"}
    before = modelhound.search("digits", f"file:{tmp_path / 'own.pt'}", run=tmp_path / "before", **options)
    user_code.write_text(CODE.replace('"input_size": 40', '"input_size": 8'))
    after = modelhound.search("digits", f"file:{tmp_path / 'own.pt'}", run=tmp_path / "after", **options)
    fresh = modelhound.search("digits", f"file:{tmp_path / 'own.pt'}", run=tmp_path / "fresh", fresh=True, **options)
    assert after.ranking.models[0].scores == fresh.ranking.models[0].scores
    assert after.ranking.models[0].scores != before.ranking.models[0].scores
    again = modelhound.search("digits", f"file:{tmp_path / 'own.pt'}", run=tmp_path / "after", **options)
    assert again.num_resumed == 1


@pytest.mark.parametrize("plain", [False, True])
def test_a_transform_that_fails_on_an_item_is_its_models_failure_and_the_others_go_on(
    user_code: Path, plain: bool
) -> None:
    names = [f"py:{user_code.stem}:{name}" for name in ("make", "with_moody_transform")]
    result = modelhound.search("digits", names, limit=60, plain=plain)
    assert [row.model for row in result.ranking.models] == names[:1]
    ((model, error),) = ((failure.model, failure.error) for failure in result.failures)
    assert model == names[1]
    assert "too dark for me; mend the transform" in error


def test_a_script_that_ends_the_process_is_no_model_and_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import sys\nsys.exit('usage: script.py DATA')\n" + CODE)
    (model,) = find_models([f"py:{file}:make"])
    with pytest.raises(ModelError, match=r"script\.py:make: SystemExit: usage: script.py DATA; expected"):
        source_of(model).read_weights(model.name)


@pytest.mark.parametrize("plain", [False, True], ids=["engine", "plain"])
def test_networks_of_one_class_are_told_apart_by_what_they_were_made_with(tmp_path: Path, plain: bool) -> None:
    file = tmp_path / "picking.py"
    file.write_text(
        CODE
        + """
class Picking(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
    def forward(self, images):
        return images[:, 0, self.options["rows"]].flatten(1)

def middle():
    return Picking({"rows": [3, 4]}), {"input_size": 8}

def edge():
    return Picking({"rows": [0]}), {"input_size": 8}
"""
    )
    models = [f"py:{file}:{name}" for name in ("edge", "middle")]
    result = modelhound.search("digits", models, limit=200, scorers="ridge", workers=0, plain=plain)
    assert result.failures == ()
    found = {row.model.rpartition(":")[2]: row.scores["ridge"] for row in result.ranking.models}
    assert found["middle"] > found["edge"] + 0.1
