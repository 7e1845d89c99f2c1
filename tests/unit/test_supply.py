"""What networks are fed with: each item once, in every form, cut into batches."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modelhound.data import InputForm, OwnTransform, Preprocessing, Tokenising, load_batches, open_dataset
from modelhound.data.decode.decoded import decode
from modelhound.data.tokenising import fingerprint_tokenizer, tokenise
from modelhound.features import supply as supply_module
from modelhound.features.supply import Supply, _Growing, input_bytes, input_key
from tiny_encoders import write_tokenizer

LARGE = Preprocessing(
    input_size=(32, 32), interpolation="bicubic", crop_fraction=1.0, crop_mode="center", mean=(0.5,) * 3, std=(0.5,) * 3
)
SMALL = Preprocessing(
    input_size=(16, 16),
    interpolation="bilinear",
    crop_fraction=0.8,
    crop_mode="center",
    mean=(0.1,) * 3,
    std=(0.3,) * 3,
)


class LooksAlike:
    """As torchvision's Lambda does, whatever it is made with."""

    def __repr__(self) -> str:
        return "LooksAlike()"

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.zeros(3, 4, 4)


def keyed(*forms: InputForm) -> dict[str, InputForm]:
    return {input_key(form): form for form in forms}


def whole(supply: Supply, items: range, order: Any, forms: dict[str, InputForm], batch: int = 5) -> dict[str, Any]:
    """By form the item numbers and inputs of all batches, one after the other."""
    feeds = supply.open(items, order, forms, dict.fromkeys(forms, batch))
    return {
        key: (
            torch.cat(list(feed.items())),
            torch.cat([feed.inputs(number, torch.contiguous_format) for number in range(feed.num_batches)]),
        )
        for key, feed in feeds.items()
    }


def test_inputs_are_those_of_the_plain_loader_in_every_form() -> None:
    data, forms = open_dataset("digits", limit=23 * 10), keyed(LARGE, SMALL)
    found = whole(Supply(data, device="cpu", dtype=torch.float32), range(len(data)), range(len(data)), forms, batch=50)
    for key, form in forms.items():
        plain = torch.cat([torch.as_tensor(each.inputs_on("cpu")) for each in load_batches(data, form, batch=64)])
        assert found[key][0].tolist() == list(range(len(data)))
        assert torch.equal(found[key][1], plain)


def test_a_range_of_an_order_gives_those_items_with_their_numbers() -> None:
    data = open_dataset("digits", limit=40)
    order = torch.randperm(40, generator=torch.manual_seed(0)).tolist()
    supply = Supply(data, device="cpu", dtype=torch.float32)
    ((_, everything),) = whole(supply, range(40), range(40), keyed(SMALL)).values()
    ((numbers, inputs),) = whole(supply, range(10, 27), order, keyed(SMALL)).values()
    assert numbers.tolist() == list(range(10, 27))
    assert torch.equal(inputs, everything[order[10:27]])


def test_every_item_is_decoded_once_for_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], int]] = []

    def note(dataset: Any, positions: Any, forms: Any, **options: Any) -> Any:
        asked.append((list(positions), len(forms)))
        return decode(dataset, positions, forms, **options)

    monkeypatch.setattr(supply_module, "decode", note)
    data = open_dataset("digits", limit=30)
    supply = Supply(data, device="cpu", dtype=torch.float32)
    feeds = supply.open(range(30), range(30), keyed(LARGE, SMALL), dict.fromkeys(keyed(LARGE, SMALL), 7))
    for feed in feeds.values():
        for _ in range(2):  # two networks that want the same form
            for number in range(feed.num_batches):
                feed.wait(number)
                feed.inputs(number, torch.channels_last)
    assert asked == [(list(range(30)), 2)]


def test_batches_have_the_layout_and_type_asked_for_and_the_last_is_shorter() -> None:
    data = open_dataset("digits", limit=23)
    supply = Supply(data, device="cpu", dtype=torch.float64)
    (feed,) = supply.open(range(23), range(23), keyed(SMALL), {input_key(SMALL): 10}).values()
    assert [len(items) for items in feed.items()] == [10, 10, 3]
    batch = feed.inputs(2, torch.channels_last)
    assert isinstance(batch, torch.Tensor)
    assert (batch.shape, batch.dtype) == ((3, 3, 16, 16), torch.float64)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    stand_in = feed.stand_in(2)
    assert isinstance(stand_in, torch.Tensor)
    assert (stand_in.shape, stand_in.dtype) == (batch.shape, batch.dtype)


def test_texts_are_tokenised_as_by_themselves_and_those_cut_are_counted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    form = Tokenising(folder=str(tmp_path), max_tokens=12, fingerprint=fingerprint_tokenizer(tmp_path))
    data = open_dataset("sms", limit=40)
    supply = Supply(data, device="cpu", dtype=torch.float32)
    (feed,) = supply.open(range(8, 30), range(40), keyed(form), {input_key(form): 6}).values()
    seen: list[int] = []
    for number, items in enumerate(feed.items()):
        inputs = feed.inputs(number, torch.contiguous_format)
        assert isinstance(inputs, dict)
        for row, item in enumerate(items.tolist()):
            expected, _ = tokenise([data.read(item)], form)  # type: ignore[list-item]
            kept = inputs["attention_mask"][row].bool()
            assert torch.equal(inputs["input_ids"][row][kept], expected["input_ids"][0])
        seen += items.tolist()
    assert sorted(seen) == list(range(8, 30))
    cut = [tokenise([data.read(item)], form)[1] for item in range(8, 30)]  # type: ignore[list-item]
    assert feed.num_truncated == sum(cut) > 0


def test_a_file_that_breaks_between_looking_and_decoding_is_the_datas_fault(
    image_folder: Callable[..., Path],
) -> None:
    folder = image_folder(num_classes=2, per_class=6)
    data = open_dataset(str(folder))
    (folder / "class1" / "003.png").write_bytes(b"not a picture any more")
    with pytest.raises(Exception, match=r"class1/003\.png") as caught:
        Supply(data, device="cpu", dtype=torch.float32).open(range(12), range(12), keyed(SMALL), {input_key(SMALL): 4})
    assert type(caught.value).__name__ == "BrokenItemError"


def test_forms_that_give_the_same_inputs_have_one_key(tmp_path: Path) -> None:
    here, there = (
        Tokenising(folder=str(tmp_path / name), max_tokens=12, fingerprint="same tokenizer") for name in "ab"
    )
    assert input_key(here) == input_key(there)
    assert input_key(here) != input_key(Tokenising(folder="a", max_tokens=13, fingerprint="same tokenizer"))
    assert input_key(LARGE) != input_key(SMALL)
    one, other = (OwnTransform(transform=LooksAlike(), input_size=(4, 4)) for _ in range(2))
    assert repr(one) == repr(other)
    assert input_key(one) == input_key(one) != input_key(other)
    assert input_bytes(SMALL) == 3 * 16 * 16
    assert input_bytes(one) == 4 * 3 * 4 * 4  # float32
    assert input_bytes(here) == 12 * 16  # ids and mask, eight bytes each


def test_who_waits_for_items_gets_them_when_they_are_there_or_the_error() -> None:
    data = open_dataset("digits", limit=20)
    growing, got = _Growing(20, "cpu"), []
    waiting = threading.Thread(target=lambda: got.append(growing.wait(15)))
    waiting.start()
    for start in (0, 10):
        assert got == []
        growing.add(decode(data, range(start, start + 10), [SMALL], device="cpu"), start)
    waiting.join(10)
    assert len(got) == 1
    inputs = got[0].inputs(SMALL, 5, 15, dtype=torch.float32, channels_last=False)
    at_once = decode(data, range(20), [SMALL], device="cpu")
    assert torch.equal(inputs, at_once.inputs(SMALL, 5, 15, dtype=torch.float32, channels_last=False))

    broken = _Growing(20, "cpu")
    broken.add(decode(data, range(10), [SMALL], device="cpu"), 0)
    broken.fail(ValueError("cannot be decoded"))
    broken.wait(10)  # what came before is good
    with pytest.raises(ValueError, match="cannot be decoded"):
        broken.wait(11)


def test_who_waits_is_told_whatever_ends_decoding_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the memory for all items is not to be had, after the first of them were decoded."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)  # and torch.cuda.stream(None) does nothing
    supply = Supply(open_dataset("digits", limit=20), device="cpu", dtype=torch.float32)
    growing = _Growing(20, "cpu")
    monkeypatch.setattr(growing, "_make_room_like", lambda made: 1 / 0)
    monkeypatch.setattr(supply_module, "_BLOCK", 10)
    with pytest.raises(ZeroDivisionError):
        supply._decode_blocks(growing, range(20), [SMALL])
    with pytest.raises(ZeroDivisionError):
        growing.wait(10)


def test_nothing_is_decoded_ahead_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset("digits", limit=20)
    decoded: list[object] = []  # an error in a thread of its own would be lost when the supply is closed
    monkeypatch.setattr(supply_module, "decode", lambda *asked, **_: decoded.append(asked))
    supply = Supply(data, device="cpu", dtype=torch.float32)
    supply.expect(range(10), range(20), keyed(SMALL))
    supply.expect_all(range(20), keyed(SMALL))
    supply.close()
    assert not decoded
