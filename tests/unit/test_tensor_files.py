"""Tensors over mapped files: the same as the library's own, none made before it is asked for."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelhound.errors import ModelError
from modelhound.models.checkpoints import count_tensors, read_tensors
from modelhound.models.tensor_files import open_tensors


def some_tensors() -> dict[str, torch.Tensor]:
    generator = torch.manual_seed(0)
    return {
        "matrix": torch.randn(3, 5, generator=generator),
        "halves": torch.randn(7, generator=generator).half(),
        "rounded": torch.randn(2, 2, 2, generator=generator).bfloat16(),
        "count": torch.tensor(12),
        "flags": torch.tensor([True, False, True]),
        "nothing": torch.empty(0, 4),
    }


def test_every_tensor_equals_what_the_library_reads(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / "a.safetensors")
    ours, theirs = open_tensors([tmp_path / "a.safetensors"]), load_file(tmp_path / "a.safetensors")
    assert set(ours) == set(theirs)
    assert len(ours) == 6
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor)
        assert (ours.place(name).dtype, ours.place(name).shape) == (tensor.dtype, tuple(tensor.shape))
        assert ours[name] is ours[name]


def test_several_files_are_one_model(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "2.safetensors")
    tensors = open_tensors([tmp_path / "1.safetensors", tmp_path / "2.safetensors"])
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"a": [1.0, 1.0], "b": [0.0, 0.0, 0.0]}
    assert tensors.paths == (tmp_path / "1.safetensors", tmp_path / "2.safetensors")


def test_writing_into_a_tensor_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(4)}, path)
    before = path.read_bytes()
    open_tensors([path])["a"].zero_()
    assert path.read_bytes() == before
    assert open_tensors([path])["a"].tolist() == [1.0] * 4


def test_numbers_that_begin_at_an_odd_byte_are_read(tmp_path: Path) -> None:
    content = torch.tensor([1.5, -2.0]).numpy().tobytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * ((1 - len(header)) % 4)  # the library writes headers of a multiple of 8 bytes, others need not
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content)
    assert read_tensors("file:a", tmp_path / "a.safetensors")["a"].tolist() == [1.5, -2.0]


def test_numbers_are_counted_without_making_tensors(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / "a.safetensors")
    assert count_tensors("file:a", tmp_path / "a.safetensors") == 15 + 7 + 8 + 1 + 3


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(ModelError, match=r"cannot read weights of file:a from 'a\.safetensors'"):
        read_tensors("file:a", tmp_path / "a.safetensors")


def test_a_file_that_is_cut_short_later_is_refused_before_it_is_looked_at_and_one_that_is_deleted_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.safetensors"
    save_file(some_tensors(), path)
    ours, whole = open_tensors([path]), path.read_bytes()
    ours.check_whole()
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match="somebody has cut it short"):
        ours.check_whole()
    path.unlink()
    ours.check_whole()
