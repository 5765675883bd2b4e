"""A weighted mean of layers is exported exactly, and learnt by `probe`; what it would change is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerprobe as lp
from layerprobe.errors import DataError, ModelError
from tests.few import few
from tests.models import HIDDEN, N_BLOCKS, TEXTS, save_tiny, tiny_tokenizer

from .judges import layerprobe_embeddings, run_card, sentence_transformer
from .test_sentence_transformers import built, dense, mean, modules

WEIGHTS = {0: 0.25, 2: 1.0}


def averaged(model: Path, weights: dict[int, float], **how: Any) -> Any:
    layers = [weight * layerprobe_embeddings(model, layer, **how) for layer, weight in weights.items()]
    return sum(layers) / sum(weights.values())


@pytest.mark.parametrize("pooling", few(["mean", "cls", "last"], lambda pooling: pooling == "mean"))
def test_the_mean_of_layers_is_what_sentence_transformers_encodes(pooling: Any, tmp_path: Path) -> None:
    model = save_tiny("bert", tmp_path / "model", tokenizer=tiny_tokenizer())
    done = lp.export_model(lp.Model(model, pooling=pooling, prompt="layer "), tmp_path / "out", weights=WEIGHTS)
    assert (done.layer, done.n_blocks, done.modules) == (2, N_BLOCKS, ("WeightedLayerPooling", "Pooling"))
    assert done.changes == ("the weighted mean of layers 0 (0.20) and 2 (0.80)",)
    expected = averaged(model, WEIGHTS, pooling=pooling, prompt="layer ")
    written = sentence_transformer(tmp_path / "out")
    np.testing.assert_allclose(written.encode(TEXTS), expected, rtol=0, atol=1e-6)
    assert written[0].model.config.num_hidden_layers == 2
    written.save(str(tmp_path / "saved"))
    np.testing.assert_array_equal(sentence_transformer(tmp_path / "saved").encode(TEXTS), written.encode(TEXTS))
    for texts, embeddings in run_card(tmp_path / "out"):
        np.testing.assert_allclose(embeddings, written.encode(texts), rtol=0, atol=1e-6)


def test_modules_after_the_pooling_are_left_out(tmp_path: Path) -> None:
    model = built(tmp_path, mean(), dense(), modules()["Normalize"](), length=20)
    done = lp.export_model(model, tmp_path / "out", weights={N_BLOCKS: 1})
    assert done.modules == ("WeightedLayerPooling", "Pooling")
    assert "without its Dense and Normalize, which is no part" in done.warnings[-2]
    assert "only sentence-transformers with torch averages layers" in done.warnings[-1]
    np.testing.assert_allclose(
        sentence_transformer(tmp_path / "out").encode(TEXTS),
        averaged(model, {N_BLOCKS: 1}, max_length=20),
        rtol=0,
        atol=1e-6,
    )
    assert done.parameters == done.whole_parameters
    assert sentence_transformer(tmp_path / "out").get_embedding_dimension() == HIDDEN


@pytest.mark.parametrize(
    ("encoder", "options", "words"),
    [
        ("bert", {"weights": {1: 0.0}}, r"expected weights of layers of a text model, .* got \{1: 0\.0\} for"),
        ("bert", {"weights": [0.5, 0.5]}, r"expected weights of layers of a text model, .* got \[0\.5, 0\.5\]"),
        ("bert", {"weights": {1: "all"}}, r"expected weights of layers of a text model, .* got \{1: 'all'\}"),
        ("bert", {"weights": {9: 1.0}}, "expected layers from 0 to"),
        ("bert", {"weights": {1: 1.0}, "layer": 1}, "without a layer, 8 bits or a fine-tuning run"),
        ("llama", {"weights": {1: 1.0, 2: 1.0}}, "has a final norm, which sentence-transformers"),
    ],
)
def test_what_no_mean_can_be_is_refused(encoder: str, options: Any, words: str, tmp_path: Path) -> None:
    model = save_tiny(encoder, tmp_path / "model")
    with pytest.raises(DataError, match=words):
        lp.export_model(model, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_pooling_that_is_not_linear_is_refused_by_its_embeddings(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing was exported; expected mean, cls or last pooling"):
        lp.export_model(lp.Model(bert, pooling="max"), tmp_path / "out", weights=WEIGHTS)


def test_a_result_of_probing_is_exported_with_its_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "cache"))
    rows = [(f"{'layers ' * n}{text} {word}", word) for text in TEXTS for n in range(8) for word in ("model", "others")]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *(f'"{text}",{word}' for text, word in rows)]))
    model, task = save_tiny("bert", tmp_path / "model"), lp.load_task(tmp_path / "texts.csv")
    result = lp.probe(model, task, cv=3, foldings=1, weighted_mean=True)
    assert result.summed is not None
    done = lp.export_model(model, tmp_path / "out", weights=result)
    card = (tmp_path / "out" / "README.md").read_text()
    score = f"{result.summed.metrics[result.primary]:.2f}"
    assert all(words in card for words in ("a weighted mean of layers", "How the weights were learned", score))
    assert done.layer == max(layer for layer, weight in result.layer_weights.items() if weight)  # type: ignore[type-var]
    items: Any = task.split("all")
    encoded = sentence_transformer(tmp_path / "out").encode(list(items.first))
    layers = np.asarray(lp.extract(model, items.first))
    expected = np.tensordot(layers, list(result.layer_weights.values()), (1, 0))
    np.testing.assert_allclose(encoded, expected, rtol=0, atol=1e-5)
    labels = np.array(task.labels)[np.array(items.gold, dtype=int)]
    assert (result.estimator("weighted mean").predict(encoded) == labels).mean() > 0.6
    without = lp.probe(model, task, cv=3, foldings=1, weighted_sum=False)
    with pytest.raises(DataError, match="has no weighted mean of layers: probe with weighted_mean=True"):
        lp.export_model(model, tmp_path / "other", weights=without)
    other = lp.probe(list(layers.swapaxes(0, 1)), labels, cv=3, foldings=1, weighted_mean=True)
    with pytest.raises(DataError, match=r"expected a finding for .*, got one for arrays"):
        lp.export_model(model, tmp_path / "other", weights=other)
