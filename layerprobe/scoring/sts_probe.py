"""Embeddings and gold similarities -> what ridge regression on frozen pairs scores, layer by layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings
from layerprobe.metrics.names import METRICS, Split
from layerprobe.metrics.scores import evaluate_outputs
from layerprobe.progress import Progress, silent
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import naming_layer
from layerprobe.serialisation import digest, to_json
from layerprobe.store.stored import stored_result
from layerprobe.tasks.values import Examples, Task
from layerprobe.versions import STS_PROBE_VERSION

PENALTIES = tuple(10.0**power for power in range(0, 7))
"""The cross-validation chooses among them; features have a standard deviation of 1."""


def sts_probe(
    embeddings: Embeddings,
    task: Task,
    *,
    split: Split = "validation",
    fitted: Embeddings | None = None,
    progress: Progress = silent,
) -> LayerScores:
    """Return how well a linear model of frozen embeddings predicts the similarity of two texts, layer by layer.

    Ridge regression on (|u - v|, u * v), fitted on the train split; the penalty is chosen there by leave-one-out
    cross-validation. Kept in the store.

    Args:
        embeddings: What `extract` gave for the texts of the split.
        task: Of kind sts.
        split: What is scored.
        fitted: What `extract` gave for the texts of the train split; by default `embeddings` has those texts too.
        progress: Told the layers that are done.

    Raises:
        MisalignedSamplesError: If a text was not embedded.
        DataError: If the task is of another kind or has no training pairs, or a layer cannot be scored.
    """
    if task.kind != "sts":
        raise DataError(f"expected a task of kind sts to regress on, got {task.kind}: zero_shot has probes for others")
    fitted = fitted or embeddings
    key = digest([STS_PROBE_VERSION, embeddings.fingerprint, fitted.fingerprint, task.digest, split])
    kept = stored_result(embeddings.store, "sts-probes", key, LayerScores)
    if kept is not None:
        return kept
    train, examples = task.train, task.split(split)
    if len(train) < 2:
        raise DataError(f"expected at least two training pairs to fit a probe on, got {len(train)}")
    found = []
    for layer in range(embeddings.n_layers):
        outputs = ridge_probe(
            pair_features(fitted, layer, train), np.array(train.targets), pair_features(embeddings, layer, examples)
        )
        with naming_layer(layer, embeddings):
            found.append(evaluate_outputs("sts", outputs, np.array(examples.targets)).metrics)
        progress(f"probing {embeddings.model.name}", layer + 1, embeddings.n_layers)
    scores = LayerScores(
        split=split,
        method="probe",
        primary=task.primary,
        metrics={name: tuple(each[name] for each in found) for name in METRICS["sts"]},
    )
    embeddings.store.save_result("sts-probes", key, to_json(scores))
    return scores


def ridge_probe(
    train: NDArray[np.float64], targets: NDArray[np.float64], features: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Fit ridge regression and return its output for other features.

    Each feature is divided by its standard deviation in `train`; the penalty is chosen by leave-one-out.

    Args:
        train: (n, features).
        targets: (n,) gold similarities.
        features: (m, features).

    Returns:
        (m,) predicted similarities.
    """
    from sklearn.linear_model import RidgeCV  # takes a second to load

    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread <= np.finfo(np.float32).eps * np.abs(mean)] = 1.0  # a feature that is the same everywhere
    model = RidgeCV(alphas=PENALTIES).fit((train - mean) / spread, targets)
    outputs: NDArray[np.float64] = model.predict((features - mean) / spread)
    return outputs


def pair_features(embeddings: Embeddings, layer: int, pairs: Examples) -> NDArray[np.float64]:
    """Return (pair, 2 x features): |u - v| and u * v, which do not depend on which text comes first."""
    values = embeddings.layer(layer).astype(np.float64)
    u, v = values[embeddings.rows(pairs.first)], values[embeddings.rows(pairs.second or ())]
    return np.concatenate([np.abs(u - v), u * v], axis=1)
