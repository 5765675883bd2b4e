"""Prompt entropy and curvature are their definitions, text by text, whatever the batches and the padding."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.errors import DegenerateLayerError
from layerprobe.extraction.embed import curvature, embed_and_measure, embed_layers, prompt_entropy
from tests.models import N_BLOCKS, TEXTS, save_tiny, tiny_tokenizer

Loaded = Callable[[str], Encoder]
Array = NDArray[np.float64]


def entropy_by_hand(tokens: Array) -> float:
    cosines = np.array([[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in tokens] for x in tokens])
    shares = np.linalg.eigvalsh(cosines / np.trace(cosines))
    return float(-sum(share * math.log(share) for share in shares if share > 1e-12))


def curvature_by_hand(tokens: Array) -> float:
    steps = [later - earlier for earlier, later in itertools.pairwise(tokens)]
    angles = [
        math.acos(min(1.0, max(-1.0, float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))))
        for a, b in itertools.pairwise(steps)
        if np.linalg.norm(a) > 0 and np.linalg.norm(b) > 0
    ]
    return sum(angles) / len(angles) if angles else math.nan


def one_text(tokens: Any) -> tuple[torch.Tensor, torch.Tensor]:
    states = torch.tensor(tokens, dtype=torch.float32)[None]
    return states, torch.ones(states.shape[:2], dtype=torch.long)


@torch.inference_mode()
def by_hand(encoder: Encoder, measure: Callable[[Array], float]) -> Array:
    """Every text in a forward pass of its own: (layer, text)."""
    found = []
    for text in TEXTS:
        inputs = collate(encoder.tokenize([text]), [0])
        found.append([measure(states[0].double().numpy()) for states in encoder.layer_states(inputs)])
    return np.array(found).T


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "convbert"])
def test_equal_to_the_definitions_text_by_text(name: str, batch_tokens: int, loaded: Loaded) -> None:
    encoder = loaded(name)
    tokens = encoder.tokenize(TEXTS)
    embeddings, measures = embed_and_measure(encoder, tokens, batch_tokens=batch_tokens)
    np.testing.assert_allclose(embeddings, embed_layers(encoder, tokens, batch_tokens=batch_tokens), atol=1e-6)
    assert measures[0].shape == measures[1].shape == (N_BLOCKS + 1, len(TEXTS))
    np.testing.assert_allclose(measures[0], by_hand(encoder, entropy_by_hand), atol=2e-5)
    np.testing.assert_allclose(measures[1], by_hand(encoder, curvature_by_hand), atol=2e-5)


def test_left_padding(loaded: Loaded, tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny("bert", tmp_path, tokenizer=tiny_tokenizer(padding_side="left"))))
    _, measures = embed_and_measure(encoder, encoder.tokenize(TEXTS), batch_tokens=10_000)
    np.testing.assert_allclose(measures[0], by_hand(loaded("bert"), entropy_by_hand), atol=2e-5)
    np.testing.assert_allclose(measures[1], by_hand(loaded("bert"), curvature_by_hand), atol=2e-5)


def test_known_entropies() -> None:
    """Orthogonal tokens have log T, copies 0, whatever their lengths; more tokens than features stay below log d."""
    rng = np.random.default_rng(0)
    assert prompt_entropy(*one_text(np.diag([1.0, 5.0, 0.1, 2.0]))).item() == pytest.approx(math.log(4), abs=1e-6)
    assert prompt_entropy(*one_text(np.outer([1, 2, 3], rng.normal(size=5)))).item() == pytest.approx(0, abs=1e-5)
    many = rng.normal(size=(300, 4))
    assert prompt_entropy(*one_text(many)).item() == pytest.approx(entropy_by_hand(many), abs=1e-5)
    assert prompt_entropy(*one_text(many)).item() < math.log(4)


def test_known_curvatures() -> None:
    """A line has 0, there and back pi, a square a right angle, also far from the origin; two tokens have none."""
    line, square = [[0.0, 0], [1, 1], [3, 3]], [[0.0, 0], [1, 0], [1, 1], [0, 1]]
    assert curvature(*one_text(line)).item() == pytest.approx(0, abs=1e-6)
    assert curvature(*one_text([[0.0, 0], [1, 0], [0, 0]])).item() == pytest.approx(math.pi)
    assert curvature(*one_text(square)).item() == pytest.approx(math.pi / 2)
    assert curvature(*one_text(np.array(square) + 100)).item() == pytest.approx(math.pi / 2)
    assert curvature(*one_text([[0.0, 0], [1, 0]])).isnan().item()
    assert curvature(*one_text([[0.0, 0], [0, 0], [1, 0], [2, 0]])).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_text_with_a_state_that_is_not_finite_has_no_measure(bad: float) -> None:
    states = torch.tensor(np.random.default_rng(2).normal(size=(2, 7, 5)), dtype=torch.float32)
    states[1, 6, 3] = bad  # the five tokens before it have angles of their own
    for measure in (prompt_entropy, curvature):
        assert measure(states, torch.ones(2, 7)).isnan().tolist() == [False, True]


def test_padding_may_hold_anything() -> None:
    rng = np.random.default_rng(1)
    states, mask = torch.tensor(rng.normal(size=(1, 7, 5)), dtype=torch.float32), torch.tensor([[0, 1, 1, 1, 1, 0, 0]])
    inside = states[:, 1:5], mask[:, 1:5]
    filled = states.masked_fill(mask[..., None] == 0, torch.nan)
    for measure in (prompt_entropy, curvature):
        np.testing.assert_allclose(measure(filled, mask), measure(*inside), atol=1e-6)


def test_a_reduced_forward_pass_is_measured_in_float32(tmp_path: Path) -> None:
    folder = str(save_tiny("bert", tmp_path))
    encoder = load_encoder(folder, dtype="bfloat16")
    _, measures = embed_and_measure(encoder, encoder.tokenize(["a b c d e f g h"]))
    with torch.inference_mode(), encoder.precision():
        inputs = collate(encoder.tokenize(["a b c d e f g h"]), [0])
        states = [state[0].double().numpy() for state in encoder.layer_states(inputs)]
    np.testing.assert_allclose(measures[0][:, 0], [entropy_by_hand(state) for state in states], atol=1e-4)


def test_a_state_that_is_not_finite_is_an_error_even_where_pooling_does_not_see_it(tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny("gpt2", tmp_path)))
    letter = encoder.tokenizer.convert_tokens_to_ids("d")
    with torch.no_grad():
        encoder.model.get_input_embeddings().weight[letter] = torch.nan
    with pytest.raises(DegenerateLayerError, match="is not finite for 1 of 1 texts"):
        embed_and_measure(encoder, encoder.tokenize(["a b c d"]), pooling="cls")
