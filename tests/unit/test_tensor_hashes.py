"""Digests of tensors, from memory and straight from files."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modelhound.models.tensor_hashes import TensorHasher, hash_tensor

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64),
    *(torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=torch.manual_seed(0)).to(dtype)


def test_a_file_gives_the_digests_of_its_tensors_whatever_their_type(tmp_path: Path) -> None:
    tensors = {str(dtype): some(dtype, 3, 4, 2) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = TensorHasher().hash_files([tmp_path / "a.safetensors"])
    assert found == {name: hash_tensor(tensor) for name, tensor in tensors.items()}
    assert len(set(found.values())) == len(tensors)


def test_several_files_are_one_model(tmp_path: Path) -> None:
    first, second = {"a": some(torch.float32, 5)}, {"b": some(torch.float16, 5)}
    save_file(first, tmp_path / "1.safetensors")
    save_file(second, tmp_path / "2.safetensors")
    found = TensorHasher().hash_files([tmp_path / "1.safetensors", tmp_path / "2.safetensors"])
    assert found == {"a": hash_tensor(first["a"]), "b": hash_tensor(second["b"])}


def test_no_files_have_no_digests() -> None:
    assert TensorHasher().hash_files(()) == {}


def test_shape_type_and_content_count() -> None:
    tensor = torch.zeros(2, 6)
    digests = {hash_tensor(each) for each in (tensor, tensor.reshape(3, 4), tensor.to(torch.int32), tensor + 1)}
    assert len(digests) == 4
    assert hash_tensor(-tensor) != hash_tensor(tensor)  # -0.0 equals 0.0 and is other bits


def test_the_order_in_memory_does_not_count() -> None:
    images = torch.randn(2, 3, 4, 5, generator=torch.manual_seed(0))
    assert hash_tensor(images.to(memory_format=torch.channels_last)) == hash_tensor(images)
    assert hash_tensor(images.transpose(0, 1).contiguous().transpose(0, 1)) == hash_tensor(images)
    assert hash_tensor(images[:, 1:2]) == hash_tensor(images[:, 1:2].clone())
    assert hash_tensor(torch.nn.Parameter(images)) == hash_tensor(images)


@pytest.mark.parametrize("kept", [0, 5, 8, 40, -1])
def test_a_file_that_was_cut_off_gives_none(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": some(torch.float32, 50), "b": some(torch.float32, 50)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    assert TensorHasher().hash_files([path]) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04 some archive that is none of ours, and long enough to have a header",
        (2).to_bytes(8, "little") + b"[]",
        (14).to_bytes(8, "little") + b'{"a": "strange"'[:14],
        b"\xff" * 64,
    ],
)
def test_a_foreign_file_gives_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    assert TensorHasher().hash_files([tmp_path / "a.safetensors"]) == {}


def test_a_type_that_is_not_known_gives_none(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    assert TensorHasher().hash_files([tmp_path / "a.safetensors"]) == {}


def test_one_bad_file_among_good_ones_and_a_missing_one_give_none(tmp_path: Path) -> None:
    save_file({"a": some(torch.float32, 5)}, tmp_path / "good.safetensors")
    assert TensorHasher().hash_files([tmp_path / "good.safetensors", tmp_path / "missing.safetensors"]) == {}


def test_near_copies_have_the_digests_that_each_has_by_itself(tmp_path: Path) -> None:
    """Larger and smaller than what is compared at once; files of the same header, and one of another."""
    torch.manual_seed(0)
    first = {"large": torch.randn(700, 600), **{f"small {number}": torch.randn(9, 9) for number in range(20)}}
    first |= {"count": torch.tensor(3), "nothing": torch.empty(0, 2)}
    changed = first["large"].clone()
    changed[-1, -1] += 1
    models = [
        first,
        dict(first),
        {**first, "small 7": -first["small 7"]},
        {**first, "large": changed, "count": torch.tensor(4)},
        {**first, "small 7": torch.randn(3, 27)},
    ]
    hasher = TensorHasher()
    for number, tensors in enumerate(models):
        save_file(tensors, tmp_path / f"{number}.safetensors")
    paths = [tmp_path / f"{number}.safetensors" for number in range(len(models))]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda path: hasher.hash_files([path]), paths))
    for digests, tensors in zip(found, models, strict=True):
        assert digests == {name: hash_tensor(tensor) for name, tensor in tensors.items()}
    assert len({tuple(digests.items()) for digests in found}) >= 4


def test_a_damaged_file_of_a_known_kind_gives_none_and_the_next_is_not_held_up(tmp_path: Path) -> None:
    hasher = TensorHasher()
    tensors = {"a": some(torch.float32, 50), "b": some(torch.float32, 50)}
    for name in ("one", "two", "three"):
        save_file(tensors, tmp_path / name)
    (tmp_path / "two").write_bytes((tmp_path / "two").read_bytes()[:-1])
    expected = {name: hash_tensor(tensor) for name, tensor in tensors.items()}
    assert hasher.hash_files([tmp_path / "one"]) == expected
    assert hasher.hash_files([tmp_path / "two"]) == {}
    assert hasher.hash_files([tmp_path / "three"]) == expected


def test_no_file_stays_open_however_many_kinds_there_are(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell which files are open")
    hasher = TensorHasher()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for size in range(1, 21):
        save_file({"weight": torch.ones(size)}, tmp_path / f"{size}.safetensors")
        assert hasher.hash_files([tmp_path / f"{size}.safetensors"]) == {"weight": hash_tensor(torch.ones(size))}
    assert len(list(Path("/proc/self/fd").iterdir())) == before
