import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from modelhound.data import Dataset, Tokenising, open_dataset
from modelhound.data.tokenising import fingerprint_tokenizer, tokenise
from modelhound.data.tokens import tokenise_once
from modelhound.errors import ModelError, RequestError
from modelhound.records import Progress
from tiny_encoders import WORDS, write_tokenizer

NUM_TEXTS = 60


@pytest.fixture
def texts(tmp_path: Path) -> Dataset:
    generator = np.random.default_rng(0)
    lines = ["text,label"]
    for number in range(NUM_TEXTS):
        lines.append(" ".join(generator.choice(WORDS, 1 + number * 7 % 30)) + f",{'ab'[number % 2]}")
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(lines))
    return open_dataset(str(path))


@pytest.fixture
def tokenising(tmp_path: Path) -> Tokenising:
    write_tokenizer(tmp_path / "tokenizer")
    folder = tmp_path / "tokenizer"
    return Tokenising(folder=str(folder), max_tokens=20, fingerprint=fingerprint_tokenizer(folder))


def read(dataset: Dataset, positions: torch.Tensor) -> list[tuple[str, ...]]:
    return [dataset.read(int(position)) for position in positions]  # type: ignore[misc]


def test_a_batch_is_what_the_tokenizer_gives_for_its_texts(texts: Dataset, tokenising: Tokenising) -> None:
    tokenised = tokenise_once(texts, [tokenising])[tokenising]
    for batch in tokenised.batches(7):
        expected, _ = tokenise(read(texts, batch.positions), tokenising)
        assert set(batch.inputs) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(batch.inputs[name], tensor)
            assert batch.inputs[name].dtype == tensor.dtype


def test_pairs_of_texts_are_told_apart(tmp_path: Path, tokenising: Tokenising) -> None:
    lines = ["one,two,label", *(f"{' '.join(WORDS[:n])},{' '.join(WORDS[n:9])},{'ab'[n % 2]}" for n in range(1, 9))]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    pairs = open_dataset(str(tmp_path / "pairs.csv"), columns={"text": "one", "pair": "two", "label": "label"})
    for batch in tokenise_once(pairs, [tokenising])[tokenising].batches(3):
        expected, _ = tokenise(read(pairs, batch.positions), tokenising)
        assert "token_type_ids" in expected
        assert all(torch.equal(batch.inputs[name], expected[name]) for name in expected)


def test_every_text_comes_once_and_can_be_put_back(texts: Dataset, tokenising: Tokenising) -> None:
    tokenised = tokenise_once(texts, [tokenising])[tokenising]
    sums = torch.zeros(NUM_TEXTS, dtype=torch.int64)
    for batch in tokenised.batches(16):
        sums[batch.positions] += batch.inputs["input_ids"].sum(1)  # [PAD] counts 0
    by_hand = [int(tokenise([texts.read(index)], tokenising)[0]["input_ids"].sum()) for index in range(NUM_TEXTS)]  # type: ignore[list-item]
    assert sums.tolist() == by_hand


def test_batches_come_longest_first_and_with_little_padding(texts: Dataset, tokenising: Tokenising) -> None:
    tokenised = tokenise_once(texts, [tokenising])[tokenising]
    batches = list(tokenised.batches(10))
    widths = [batch.inputs["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)
    padded = sum(batch.inputs["input_ids"].numel() for batch in batches)
    in_order = [
        tokenise(read(texts, torch.arange(start, start + 10)), tokenising)[0] for start in range(0, NUM_TEXTS, 10)
    ]
    assert tokenised.num_tokens <= padded < sum(each["input_ids"].numel() for each in in_order)


def test_batches_are_the_same_every_time_and_equal_lengths_keep_their_order(
    texts: Dataset, tokenising: Tokenising
) -> None:
    one, two = (tokenise_once(texts, [tokenising])[tokenising] for _ in range(2))
    positions = torch.cat([batch.positions for batch in one.batches(7)])
    assert torch.equal(positions, torch.cat([batch.positions for batch in two.batches(7)]))
    lengths = one.lengths[positions]
    same = lengths[1:] == lengths[:-1]
    assert same.any()
    assert (positions[1:][same] > positions[:-1][same]).all()


def test_a_limit_on_tokens_makes_batches_of_long_texts_smaller(texts: Dataset, tokenising: Tokenising) -> None:
    tokenised = tokenise_once(texts, [tokenising])[tokenising]
    batches = list(tokenised.batches(16, max_batch_tokens=100))
    assert all(batch.inputs["input_ids"].numel() <= 100 and len(batch) <= 16 for batch in batches)
    assert len(batches[0]) == 5  # of 20 tokens each
    assert max(len(batch) for batch in batches) > 5
    assert sum(len(batch) for batch in batches) == NUM_TEXTS
    assert all(len(batch) == 1 for batch in tokenised.batches(16, max_batch_tokens=1))


def test_texts_that_were_cut_are_counted(texts: Dataset, tokenising: Tokenising) -> None:
    expected = sum(1 + number * 7 % 30 > 18 for number in range(NUM_TEXTS))  # [CLS] and [SEP] take two of 20
    assert tokenise_once(texts, [tokenising])[tokenising].num_truncated == expected > 0


def test_the_same_tokenizer_elsewhere_shares_the_result_and_another_length_does_not(
    texts: Dataset, tokenising: Tokenising, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path / "again")
    elsewhere, shorter = replace(tokenising, folder=str(tmp_path / "again")), replace(tokenising, max_tokens=5)
    seen: list[Progress] = []
    made = tokenise_once(texts, [tokenising, elsewhere, shorter], watch=seen.append)
    assert made[tokenising] is made[elsewhere]
    assert int(made[shorter].lengths.max()) == 5
    assert int(made[tokenising].lengths.max()) == 20
    assert (seen[-1].done, seen[-1].total) == (2 * NUM_TEXTS, 2 * NUM_TEXTS)


def test_an_encoder_without_a_mask_gets_the_same_tokens(texts: Dataset, tmp_path: Path, tokenising: Tokenising) -> None:
    write_tokenizer(tmp_path / "bare")
    settings = tmp_path / "bare" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_input_names": ["input_ids"]}))
    bare = replace(tokenising, folder=str(tmp_path / "bare"), fingerprint="bare")
    made = tokenise_once(texts, [bare, tokenising])
    assert torch.equal(made[bare].lengths, made[tokenising].lengths)
    for batch, other in zip(made[bare].batches(9), made[tokenising].batches(9), strict=True):
        assert list(batch.inputs) == ["input_ids"]
        assert torch.equal(batch.inputs["input_ids"], other.inputs["input_ids"])


def test_images_are_refused(tokenising: Tokenising) -> None:
    with pytest.raises(ModelError, match="expected texts"):
        tokenise_once(open_dataset("digits", limit=20), [tokenising])


def test_a_batch_of_nothing_is_refused(texts: Dataset, tokenising: Tokenising) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        list(tokenise_once(texts, [tokenising])[tokenising].batches(0))
