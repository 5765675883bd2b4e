from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from torch import Tensor

from layerprobe.encoders import batching
from layerprobe.encoders.batching import collate, on_device, pool, token_batches, tokenize
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, ModelError
from tests.models import VOCABULARY, save_tiny, tiny_tokenizer

LENGTHS = st.lists(st.integers(1, 40), max_size=60)
BUDGETS = st.integers(1, 200)


@given(lengths=LENGTHS, budget=BUDGETS, same_length=st.booleans())
def test_batches_have_every_row_once_longest_first_and_are_full_within_the_budget(
    lengths: list[int], budget: int, same_length: bool
) -> None:
    batches = list(token_batches(lengths, budget=budget, same_length=same_length))
    rows = [row for batch in batches for row in batch]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[row] for row in rows] == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= budget
        assert not same_length or len({lengths[row] for row in batch}) == 1
    for batch in [] if same_length else batches[:-1]:
        assert (len(batch) + 1) * lengths[batch[0]] > budget


@pytest.mark.parametrize(
    ("texts", "max_length", "n_truncated", "lengths"),
    [
        (["a b c", "a b c d", "a b c d e", "a"], 6, 1, [5, 6, 6, 3]),
        (["a b c d", "b c d e"], 6, 0, [6, 6]),
        (["abcdefgh", "a b c d e f", "a"], 4, 2, [4, 4, 3]),
        (["a"], 64, 0, [3]),
        ([], 6, 0, []),
    ],
)
def test_a_text_of_exactly_the_maximum_length_is_not_truncated(
    texts: list[str], max_length: int, n_truncated: int, lengths: list[int]
) -> None:
    tokens = tokenize(tiny_tokenizer(), texts, max_length=max_length, token_types=False)
    assert tokens.n_truncated == n_truncated
    assert tokens.lengths == lengths


@pytest.mark.parametrize("max_length", [0, 1, 2])
def test_a_maximum_length_without_room_for_words_is_refused(max_length: int) -> None:
    message = f"expected a maximum length of more than the 2 special tokens, got {max_length}"
    with pytest.raises(DataError, match=message):
        tokenize(tiny_tokenizer(), ["a b"], max_length=max_length, token_types=False)


def test_a_text_without_tokens_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(DataError, match=r"finds no token in the text '\\u200b': remove it"):
        tokenize(tokenizer, ["a b", "\u200b"], max_length=8, token_types=False)


@pytest.mark.parametrize(
    ("name", "reads_them"), [("bert", True), ("electra", True), ("gpt2", False), ("distilbert", False), ("t5", False)]
)
def test_token_types_go_to_the_models_that_have_them(
    name: str, reads_them: bool, loaded: Callable[[str], Encoder]
) -> None:
    encoder = loaded(name)
    assert "token_type_ids" in encoder.tokenizer("a"), "expected a tokenizer as BERT's"
    assert ("token_type_ids" in collate(encoder.tokenize(["a"]), [0])) == reads_them


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"token \d+, but the model knows 20 tokens: expected the tokenizer that"):
        load_encoder(str(save_tiny("bert", tmp_path, vocab_size=20)))


def test_a_token_that_the_model_does_not_know_is_named(tmp_path: Path) -> None:
    last = VOCABULARY.index("##z")  # not in the texts that a model is looked at with
    encoder = load_encoder(str(save_tiny("bert", tmp_path, vocab_size=last)))
    with pytest.raises(ModelError, match=f"token {last}, but the model knows {last} tokens"):
        encoder.tokenize(["a fox", "a fizz"])


def test_chunks_of_texts_are_tokenised_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a b c", "a", "a b c d e f g", "b", "a b"]
    whole = tokenize(tiny_tokenizer(), texts, max_length=6, token_types=True)
    monkeypatch.setattr(batching, "CHUNK", 2)
    parts = tokenize(tiny_tokenizer(), texts, max_length=6, token_types=True)
    for field in ("ids", "types", "ends", "n_truncated"):
        np.testing.assert_array_equal(getattr(parts, field), getattr(whole, field))
    assert (len(parts), parts.n_truncated) == (5, 1)


@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=6), side=st.sampled_from(["left", "right"]))
def test_collate_is_what_the_tokenizer_pads(rows: list[int], side: str) -> None:
    texts = ["a b c", "a", "a b c d e f g", "b", "a b"]
    tokenizer = tiny_tokenizer(padding_side=side)
    batch = collate(tokenize(tokenizer, texts, max_length=6, token_types=True), rows)
    padded = tokenizer([texts[row] for row in rows], truncation=True, max_length=6, padding=True)
    assert {name: values.tolist() for name, values in batch.items()} == dict(padded)


@pytest.mark.parametrize(("device", "at_once"), [("mps", False), ("cpu", False), ("cuda:1", True)])
def test_only_cuda_is_not_waited_for(device: str, at_once: bool) -> None:
    values = Mock()
    on_device(values, device)
    values.to.assert_called_once_with(device, non_blocking=at_once)


def test_a_tokenizer_that_gives_up_is_one_line() -> None:
    tokenizer = tiny_tokenizer()
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    with pytest.raises(ModelError, match=r"the tokenizer of the model cannot read the texts: .*retry-limit"):
        tokenize(tokenizer, ["a" * 40 + " 1"], max_length=16, token_types=False)


HOW: tuple[Pooling, ...] = ("mean", "cls", "max", "last")

TEXT_LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def naive(tokens: Tensor, how: Pooling) -> Tensor:
    """Pool the (token, feature) states of one text without padding, one number at a time."""
    if how == "cls":
        return tokens[0]
    if how == "last":
        return tokens[len(tokens) - 1]
    columns = [[float(row[feature]) for row in tokens] for feature in range(tokens.shape[1])]
    return torch.tensor([max(c) if how == "max" else sum(c) / len(c) for c in columns])


def padded(texts: list[Tensor], side: str, filler: float) -> tuple[Tensor, Tensor]:
    width = max(map(len, texts))
    states = torch.full((len(texts), width, texts[0].shape[1]), filler, dtype=texts[0].dtype)
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    for row, tokens in enumerate(texts):
        inside = slice(width - len(tokens), width) if side == "left" else slice(len(tokens))
        states[row, inside], mask[row, inside] = tokens, 1
    return states, mask


@pytest.mark.parametrize("filler", [0.0, 99.0, float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", HOW)
@given(lengths=TEXT_LENGTHS, seed=st.integers(0, 2**32 - 1))
def test_pooling_equals_a_loop_over_the_tokens(
    how: Pooling, side: str, filler: float, lengths: list[int], seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    texts = [torch.randn(length, 3, generator=rng) for length in lengths]
    states, mask = padded(texts, side, filler)
    expected = torch.stack([naive(tokens, how) for tokens in texts])
    torch.testing.assert_close(pool(states, mask, how), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("how", HOW)
def test_pooling_is_in_float32(how: Pooling, dtype: torch.dtype) -> None:
    # 4,096 halves are counted one by one: bfloat16 would stop at 256, float16 at 2,048
    states = torch.ones(1, 4096, 2, dtype=dtype)
    states[0, 0, 0] = 1.5
    embedding = pool(states, torch.ones(1, 4096, dtype=torch.long), how)
    assert embedding.dtype == torch.float32
    first = {"mean": 1 + 0.5 / 4096, "cls": 1.5, "max": 1.5, "last": 1.0}[how]
    assert embedding.tolist() == [[first, 1.0]]
