"""Embeddings of two models -> their CKA; of one and labels -> zero-shot scores."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.progress import Progress, silent
from layerprobe.results import (
    Alignment,
    CKAMap,
    Comparison,
    Estimator,
    Kernel,
    LayerScores,
    SentencePairs,
    digest,
    from_json,
    to_json,
)
from layerprobe.similarity import cka_curve, cka_map, cosine_scores, pearson, spearman
from layerprobe.store import Store, texts_digest
from layerprobe.study.embeddings import Embeddings

logger = logging.getLogger(__name__)


# Counts what similarity results depend on beyond their key; raise it when the numbers change.
SIMILARITY_VERSION = 1


def compare(
    model: Embeddings,
    reference: Embeddings,
    *,
    kernel: Kernel = "linear",
    estimator: Estimator = "debiased",
    bandwidth_multiplier: float = 1.0,
    alignment: Alignment | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Return CKA between all layers of two models on the texts that both embedded.

    Args:
        model: What `extract` gave for the model.
        reference: What it gave for the reference, with the same texts.
        kernel: linear or rbf.
        estimator: debiased or biased.
        bandwidth_multiplier: rbf: sigma in units of the root of the median squared distance.
        alignment: same-index, relative-depth or best-match; same-index by default, or relative-depth where
            the depths differ.
        progress: Told the layers that are done.

    Raises:
        MisalignedSamplesError: If the texts are not the same.
        DegenerateLayerError: If a layer has no similarity: constant, or fewer than four texts.
    """
    if model.texts != reference.texts:
        raise MisalignedSamplesError(
            f"{model.model.name} embedded {len(model.texts)} texts and {reference.model.name} {len(reference.texts)} "
            "others: extract both with the same texts"
        )
    if alignment is None:
        alignment = "same-index" if model.n_layers == reference.n_layers else "relative-depth"
    key = digest(
        [SIMILARITY_VERSION, model.fingerprint, reference.fingerprint, kernel, estimator, bandwidth_multiplier]
    )
    cka = _stored_map(model.store, key)
    if cka is None:
        layers_read = itertools.count(1)

        def layers(embeddings: Embeddings) -> Iterator[NDArray[np.float32]]:
            for layer in range(embeddings.n_layers):
                yield embeddings.layer(layer)
                progress("comparing", next(layers_read), model.n_layers + reference.n_layers)

        cka = cka_map(
            layers(model),
            layers(reference),
            kernel=kernel,
            estimator=estimator,
            bandwidth_multiplier=bandwidth_multiplier,
            model_name=model.model.name,
            reference_name=reference.model.name,
        )
        model.store.save_result("cka", key, to_json(cka))
    return Comparison(
        model=model.model,
        reference=reference.model,
        texts_digest=texts_digest(model.texts),
        pooling=model.pooling,
        cka=cka,
        curve=cka_curve(cka, alignment=alignment),
    )


def _stored_map(store: Store, key: str) -> CKAMap | None:
    text = store.load_result("cka", key)
    try:
        return None if text is None else from_json(CKAMap, text)
    except DataError as error:
        logger.warning("the CKA map %s in the store is damaged (%s): it is made again", key, error)
        return None


def zero_shot(embeddings: Embeddings, pairs: SentencePairs, *, split: str = "test") -> LayerScores:
    """Return how well the cosine of the pretrained embeddings ranks sentence pairs, layer by layer.

    Raises:
        MisalignedSamplesError: If a sentence was not embedded.
        DataError: If all pairs have one cosine at a layer, or one gold score.
    """
    first, second = embeddings.rows(pairs.first), embeddings.rows(pairs.second)
    gold = np.array(pairs.scores)
    scores = []
    for layer in range(embeddings.n_layers):
        values = embeddings.layer(layer)
        try:
            cosine = cosine_scores(values[first], values[second])
            scores.append((100 * spearman(cosine, gold), 100 * pearson(cosine, gold)))
        except DataError as error:
            raise DataError(f"layer {layer} of {embeddings.model.name} cannot be scored: {error}") from error
    return LayerScores(split=split, spearman=tuple(s for s, _ in scores), pearson=tuple(p for _, p in scores))
