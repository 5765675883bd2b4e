import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe.context import settings
from layerprobe.encoders.batching import collate, pool
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, Pooling
from layerprobe.errors import DegenerateLayerError
from layerprobe.extraction import embed
from layerprobe.extraction.embed import ahead, embed_layers
from tests.models import HIDDEN, N_BLOCKS, PRE_NORM, TEXTS, save_tiny, tiny_tokenizer

Loaded = Callable[[str], Encoder]
HOW: tuple[Pooling, ...] = ("mean", "cls", "max", "last")
LETTER_TEXTS = st.lists(st.text("abcdefgh ", min_size=1, max_size=30).filter(str.strip), min_size=1, max_size=12)


@torch.inference_mode()
def one_by_one(encoder: Encoder, texts: list[str] | tuple[str, ...], pooling: Pooling = "mean") -> NDArray[np.float32]:
    """Every text in a forward pass of its own, nothing padded: (layer, text, feature)."""
    rows = []
    for text in texts:
        inputs = collate(encoder.tokenize([text]), [0])
        states = list(encoder.layer_states(inputs))
        rows.append(torch.stack([pool(state, inputs["attention_mask"], pooling)[0] for state in states]))
    return torch.stack(rows, dim=1).numpy()


@pytest.mark.parametrize("pooling", HOW)
@pytest.mark.parametrize("name", ["bert", "gpt2", "deberta-v3", "t5", "convbert"])
def test_equal_to_texts_one_by_one(name: str, pooling: Pooling, loaded: Loaded) -> None:
    encoder = loaded(name)
    embeddings = embed_layers(encoder, encoder.tokenize(TEXTS), pooling=pooling, batch_tokens=64)
    assert embeddings.shape == (N_BLOCKS + 1, len(TEXTS), HIDDEN)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, one_by_one(encoder, TEXTS, pooling), atol=1e-5, rtol=1e-5)


@given(texts=LETTER_TEXTS, batch_tokens=st.integers(1, 300))
def test_order_duplicates_and_batches_do_not_matter(loaded: Loaded, texts: list[str], batch_tokens: int) -> None:
    encoder = loaded("bert")
    tokens = encoder.tokenize(texts)
    embeddings = embed_layers(encoder, tokens, batch_tokens=batch_tokens)
    np.testing.assert_allclose(embeddings, embed_layers(encoder, tokens), atol=1e-5, rtol=1e-5)
    backwards = embed_layers(encoder, encoder.tokenize(texts[::-1]), batch_tokens=batch_tokens)
    np.testing.assert_allclose(embeddings, backwards[:, ::-1], atol=1e-5, rtol=1e-5)
    first = {text: texts.index(text) for text in texts}
    np.testing.assert_allclose(embeddings, embeddings[:, [first[text] for text in texts]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["fnet", "convbert"])
def test_models_that_mix_padding_get_batches_of_one_length(
    name: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = loaded(name)
    assert not encoder.padding_invariant
    tokens = encoder.tokenize(TEXTS)
    widths = []
    states = Encoder.layer_states

    def watched(self: Encoder, batch: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
        assert batch["attention_mask"].all(), "expected no padding"
        widths.append(batch["input_ids"].shape[1])
        return states(self, batch)

    monkeypatch.setattr(Encoder, "layer_states", watched)
    small, large = (embed_layers(encoder, tokens, batch_tokens=n) for n in (1, 10_000))
    assert sorted(widths[len(TEXTS) :]) == sorted(set(tokens.lengths))
    np.testing.assert_allclose(small, large, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_left_padding(name: str, loaded: Loaded, tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny(name, tmp_path, tokenizer=tiny_tokenizer(padding_side="left"))))
    assert collate(encoder.tokenize(TEXTS), [0, 3])["attention_mask"][0, 0] == (name == "llama")  # decoders pad behind
    embeddings = embed_layers(encoder, encoder.tokenize(TEXTS), batch_tokens=200)
    np.testing.assert_allclose(embeddings, one_by_one(loaded(name), TEXTS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "deberta-v2", *PRE_NORM])
def test_bfloat16_is_close(name: str, tmp_path: Path) -> None:
    folder = str(save_tiny(name, tmp_path))
    exact, reduced = load_encoder(folder), load_encoder(Model(folder, dtype="bfloat16"))
    expected, got = (embed_layers(encoder, encoder.tokenize(TEXTS)) for encoder in (exact, reduced))
    assert got.dtype == np.float32
    assert np.abs(expected - got).max() > 0, "expected a reduced precision"
    lengths = np.linalg.norm(expected, axis=-1) * np.linalg.norm(got, axis=-1)
    assert ((expected * got).sum(axis=-1) / lengths).min() > 0.999


def test_nan_names_the_layer_and_the_model(tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny("bert", tmp_path)))
    block: Any = encoder.model.get_submodule("encoder.layer.1")
    with torch.no_grad():
        block.output.dense.bias[0] = torch.nan
    message = (
        rf"layer 2 of {tmp_path} is not finite for {len(TEXTS)} of {len(TEXTS)} texts: "
        "expected finite states, got NaN or infinity in float32"
    )
    with pytest.raises(DegenerateLayerError, match=message):
        embed_layers(encoder, encoder.tokenize(TEXTS))


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")


def limited(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception = NO_MEMORY) -> list[int]:
    """Make batches of more than `most` texts fail, by default without memory; return the sizes that were tried."""
    states, tried = Encoder.layer_states, []

    def layer_states(self: Encoder, batch: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
        tried.append(len(batch["input_ids"]))
        if tried[-1] > most:
            raise error
        return states(self, batch)

    monkeypatch.setattr(Encoder, "layer_states", layer_states)
    return tried


NO_MEMORY_ELSEWHERE = RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)")


@pytest.mark.parametrize(
    ("most", "error"), [(1, NO_MEMORY), (2, NO_MEMORY), (5, NO_MEMORY), (2, NO_MEMORY_ELSEWHERE), (2, MemoryError())]
)
def test_batches_that_do_not_fit_are_halved(
    most: int, error: Exception, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, texts = loaded("bert"), TEXTS * 3
    expected = one_by_one(encoder, texts)
    tried = limited(monkeypatch, most, error)
    embeddings = embed_layers(encoder, encoder.tokenize(texts), batch_tokens=10_000)
    assert tried[0] == len(texts)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5, rtol=1e-5)


def test_another_failure_is_passed_on(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = limited(monkeypatch, 2, RuntimeError("expected scalar type Float"))
    with pytest.raises(RuntimeError, match="expected scalar type Float"):
        embed_layers(loaded("bert"), loaded("bert").tokenize(TEXTS), batch_tokens=10_000)
    assert tried == [len(TEXTS)]


def test_a_single_text_that_does_not_fit_raises(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        embed_layers(loaded("bert"), loaded("bert").tokenize(TEXTS))


def test_a_copy_from_a_second_gpu_is_awaited_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Mock(device=torch.device("cuda:1"))
    there.to.return_value = torch.ones(2)
    event = Mock()
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
    copy = embed.copied(there)
    event.record.assert_called_once_with("stream of cuda:1")
    assert not event.synchronize.called
    np.testing.assert_array_equal(copy(), [1, 1])
    event.synchronize.assert_called_once_with()


def test_progress_counts_tokens_to_the_end(loaded: Loaded) -> None:
    encoder = loaded("bert")
    tokens = encoder.tokenize(TEXTS)
    seen: list[tuple[str, float, float]] = []
    with settings(progress=lambda *step: seen.append(step)):
        embed_layers(encoder, tokens, batch_tokens=32)
    done = [step[1] for step in seen]
    assert len(seen) > 1
    assert done == sorted(set(done))
    assert done[-1] == sum(tokens.lengths)
    assert {step[0] for step in seen} == {f"embedding with {Path(encoder.description.name).name}"}
    assert {step[2] for step in seen} == {sum(tokens.lengths)}


def test_no_texts(loaded: Loaded) -> None:
    encoder = loaded("bert")
    assert embed_layers(encoder, encoder.tokenize([])).shape == (N_BLOCKS + 1, 0, HIDDEN)


def test_the_next_item_is_made_while_the_caller_is_busy() -> None:
    begun = [threading.Event() for _ in range(3)]

    def make(number: int) -> int:
        begun[number].set()
        return 2 * number

    found = []
    for made in ahead(make, range(3)):
        found.append(made)
        assert begun[min(made // 2 + 1, 2)].wait(timeout=60)
    assert found == [0, 2, 4]
    assert list(ahead(make, ())) == []


def test_an_item_that_cannot_be_made_is_told() -> None:
    with pytest.raises(ZeroDivisionError, match="by zero"):
        list(ahead(lambda number: 1 // number, [1, 0, 2]))
