import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layouts import FINE, cifar_arrays, write_cifar10, write_cifar100_binary, write_cifar100_python
from modelhound.data import open_dataset
from modelhound.data.sources.cifar import CifarReader
from modelhound.data.sources.cifar_pickle import load_plain_pickle
from modelhound.errors import DataError
from refusals import message


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_binary_and_the_python_version_are_the_same_data_set(tmp_path: Path, protocol: int) -> None:
    binary = open_dataset(str(write_cifar100_binary(tmp_path / "cifar-100-binary")))
    python = open_dataset(str(write_cifar100_python(tmp_path / "cifar-100-python", protocol=protocol)))
    assert binary.class_names == FINE
    assert binary.item_names[:2] == ("train/0", "train/1")
    assert binary.fingerprint == python.fingerprint
    assert binary.read(7).tobytes() == python.read(7).tobytes()  # type: ignore[union-attr]


def test_planes_of_red_green_and_blue_become_pixels(tmp_path: Path) -> None:
    data = open_dataset(str(write_cifar100_binary(tmp_path / "c")))
    images, labels = cifar_arrays(60, 4)
    image = data.read(5)
    assert image.size == (32, 32)  # type: ignore[union-attr]
    row = images[5].tolist()
    assert image.getpixel((3, 2)) == (row[67], row[1024 + 67], row[2048 + 67])  # type: ignore[union-attr]
    assert data.targets.tolist() == labels.tolist()
    assert data.reader.in_memory


@pytest.mark.parametrize("write", [write_cifar100_binary, write_cifar100_python])
def test_coarse_labels_and_the_test_split_can_be_asked_for(tmp_path: Path, write: Any) -> None:
    folder = str(write(tmp_path / "c"))
    coarse = open_dataset(folder, columns={"label": "coarse"})
    assert coarse.class_names == ("fruit", "animals")
    assert coarse.targets.tolist() == [0, 1, 0, 1] * 15
    test = open_dataset(folder, split="test")
    assert test.item_names[0] == "test/0"
    assert test.read(0).tobytes() != open_dataset(folder).read(0).tobytes()  # type: ignore[union-attr]
    assert "train, test" in message(folder, split="val")
    assert "label=fine or label=coarse" in message(folder, columns={"label": "rough"})
    assert "label=fine or label=coarse" in message(folder, columns={"image": "data"})


def test_cifar_10_has_five_files_of_training_images(tmp_path: Path) -> None:
    binary = open_dataset(str(write_cifar10(tmp_path / "b", binary=True)))
    python = open_dataset(str(write_cifar10(tmp_path / "p", binary=False)))
    assert (len(binary), binary.class_names) == (60, ("plane", "car", "bird"))
    assert binary.fingerprint == python.fingerprint
    second_file, _ = cifar_arrays(12, 3, seed=1)
    assert binary.read(12).getpixel((0, 0)) == tuple(second_file[0, [0, 1024, 2048]].tolist())  # type: ignore[union-attr]
    (tmp_path / "b" / "data_batch_4.bin").unlink()
    assert "data_batch_4.bin" in message(tmp_path / "b")
    (tmp_path / "p" / "data_batch_4").unlink()
    assert "data_batch_4" in message(tmp_path / "p")


def test_binary_images_are_mapped_and_not_copied_when_some_are_chosen(tmp_path: Path) -> None:
    data = open_dataset(str(write_cifar100_binary(tmp_path / "c")), limit=20)
    assert isinstance(data.reader, CifarReader)
    assert isinstance(data.reader.arrays[0].base, np.memmap)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    folder = write_cifar100_binary(tmp_path / "c")
    os.truncate(folder / "train.bin", 3074 * 10 + 5)
    assert "multiple of 3074 bytes" in message(folder)
    python = write_cifar100_python(tmp_path / "p")
    os.truncate(python / "train", 5000)
    assert "train" in message(python)


def test_a_label_beyond_the_names_is_refused(tmp_path: Path) -> None:
    folder = write_cifar100_binary(tmp_path / "c")
    (folder / "fine_label_names.txt").write_text("apple\nbear\n")
    assert "from 0 to 1, but one is 3" in message(folder)


class _Harmful:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", ["train", "meta"])
def test_a_pickle_that_runs_code_is_refused_and_runs_none(tmp_path: Path, name: str, protocol: int) -> None:
    folder = write_cifar100_python(tmp_path / "p")
    trace = tmp_path / "trace"
    (folder / name).write_bytes(pickle.dumps({"data": _Harmful(os.mkdir, str(trace))}, protocol=protocol))
    text = message(folder)
    assert "mkdir" in text
    assert "could run code" in text
    assert not trace.exists()


@pytest.mark.parametrize(
    "harmful",
    [
        _Harmful(eval, "1"),
        _Harmful(getattr, {}, "clear"),
        _Harmful(np.load, "x", None, True),
        _Harmful(np.array, [1]),
        np.array([{}], dtype=object),
        np.arange(4, dtype=np.int64),
        1j,
    ],
    ids=["eval", "getattr", "np.load", "np.array", "objects", "int64", "complex"],
)
def test_whatever_is_not_plain_data_is_refused(tmp_path: Path, harmful: object) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps({"data": harmful}, protocol=2))
    with pytest.raises(DataError, match="could run code"):
        load_plain_pickle(tmp_path / "x")


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype\n}b.",  # change the function by a state
        b"cnumpy\ndtype\n(N}U\x05_makeI1\nsb.",
        b"cnumpy\nndarray\n)\x81.",  # make an object without calling
        b"Pid\n.",  # something outside of the pickle
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01(I1000000000000\ntcnumpy\ndtype\n(U\x02u1tR\x89U\x01xtb.",
        b"",
        b"garbage",
        b"]q\x00.",
    ],
)
def test_a_pickle_written_by_hand_gets_no_further(tmp_path: Path, program: bytes) -> None:
    (tmp_path / "x").write_bytes(program)
    with pytest.raises(DataError):
        load_plain_pickle(tmp_path / "x")


@pytest.mark.parametrize("place", [b"r\x00\x00\x00\x28", b"q\xff", b"p2000000000\n"])
def test_a_pickle_cannot_have_memory_made_for_what_it_does_not_hold(tmp_path: Path, place: bytes) -> None:
    (tmp_path / "x").write_bytes(b"}" + place + b".")
    with pytest.raises(DataError, match="before there are as many"):
        load_plain_pickle(tmp_path / "x")


def test_the_test_pickles_are_like_the_real_ones(tmp_path: Path) -> None:
    """Real files name numpy.core.multiarray, as Python 2 and numpy 1 wrote them."""
    folder = write_cifar100_python(tmp_path / "p")
    named = {
        str(argument)
        for code, argument, _ in pickletools.genops((folder / "train").read_bytes())
        if code.name == "GLOBAL"
    }
    assert "numpy.core.multiarray _reconstruct" in named
    assert {"numpy ndarray", "numpy dtype"} <= named


def test_an_array_is_made_of_bytes_and_not_of_how_many_there_shall_be(tmp_path: Path) -> None:
    """A pickle of a hundred bytes could have gigabytes of zeros made for it."""
    head = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    state = b"(K\x01K\x01K\x04\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89K\x04tb"
    (tmp_path / "x").write_bytes(head + state + b"u.")
    with pytest.raises(DataError, match="made of something else than bytes"):
        load_plain_pickle(tmp_path / "x")


def test_strings_of_python_2_are_read(tmp_path: Path) -> None:
    """There, texts and the content of arrays are strings of bytes."""
    head = b"\x80\x02}(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x01K\x04\x86" + dtype + b"\x89U\x04\x00\xff\x80\x07tb"
    (tmp_path / "x").write_bytes(head + state + b"U\x06labels](U\x01aeu.")
    loaded = load_plain_pickle(tmp_path / "x")
    assert loaded["data"].tolist() == [[0, 255, 128, 7]]
    assert loaded["labels"] == ["a"]
