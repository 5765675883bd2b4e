"""Blocks go one by one as trying out all of them says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Model
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.embeddings import extract
from layerprobe.shrinking.teacher import agreement, block_embeddings, evenly_spaced, removal_order, tokenized
from tests.few import few
from tests.models import save_tiny

TEXTS = [f"{word} {other} of it" for word in ("fox", "dog", "cat", "bird") for other in ("runs", "sleeps", "a b c")]


def last_layer(folder: Path, blocks: tuple[int, ...] | None = None) -> np.ndarray:
    """The oracle: what extraction has of the model of these blocks."""
    stored = extract(Model(str(folder), blocks=blocks), TEXTS)
    return np.asarray(stored.measured(stored.n_layers - 1))


@pytest.mark.parametrize("name", few(["bert", "modernbert", "convbert"], lambda name: name == "bert"))
def test_what_agrees_most_is_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "store"))
    folder = save_tiny(name, tmp_path / "model", num_hidden_layers=4)
    shared = SharedModel(resolve(str(folder)))
    whole, kept = last_layer(folder), (1, 2, 3, 4)
    for removal in removal_order(shared, TEXTS):
        smaller = {gone: tuple(block for block in kept if block != gone) for gone in kept}
        found = {}
        for gone, blocks in smaller.items():
            if name != "modernbert" or 1 in blocks:  # whose first block has no norm before its attention
                found[gone] = 100 * agreement(last_layer(folder, blocks), whole)
        gone = max(found, key=found.__getitem__)
        kept = smaller[gone]
        assert (removal.block, removal.kept) == (gone, kept)
        assert removal.agreement == pytest.approx(found[gone], abs=1e-3)
        first = tuple(range(1, len(kept) + 1))
        assert removal.first == pytest.approx(100 * agreement(last_layer(folder, first), whole), abs=1e-3)
    assert len(kept) == 1


def test_the_prompt_and_the_pooling_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "store"))
    folder = str(save_tiny("bert", tmp_path / "model"))
    model = Model(folder, prompt="fox: ", pooling="cls")
    stored, whole = extract(model, TEXTS), SharedModel(resolve(model))
    embeddings = block_embeddings(whole, tokenized(whole, TEXTS), (1, 2, 3))
    np.testing.assert_allclose(embeddings, stored.layer(3), atol=1e-4)


def test_batches_that_do_not_fit_are_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SharedModel(resolve(str(save_tiny("bert", tmp_path))))
    tokens = tokenized(whole, TEXTS)
    expected, model = block_embeddings(whole, tokens, (1, 2, 3)), whole.encoder.model
    forward = model.forward

    def limited(input_ids: torch.Tensor, **batch: torch.Tensor) -> Any:
        if len(input_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(input_ids=input_ids, **batch)

    monkeypatch.setattr(model, "forward", limited)
    np.testing.assert_allclose(block_embeddings(whole, tokens, (1, 2, 3)), expected, atol=1e-5)


def test_a_model_whose_blocks_cannot_be_taken_out(tmp_path: Path) -> None:
    model = resolve(str(save_tiny("albert", tmp_path / "model")))
    with pytest.raises(UnsupportedArchitectureError, match="not separate modules"):
        removal_order(SharedModel(model), TEXTS)


def test_evenly_spaced_blocks_end_with_the_last() -> None:
    for n_blocks in range(1, 30):
        for size in range(1, n_blocks + 1):
            blocks = evenly_spaced(n_blocks, size)
            assert len(set(blocks)) == size
            assert blocks[-1] == n_blocks
            assert min(blocks) >= 1
