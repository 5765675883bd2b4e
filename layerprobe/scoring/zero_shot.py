"""Embeddings and labels -> zero-shot scores of every layer: cosines, or a probe on frozen features."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.metrics.correlation import cosine_scores
from layerprobe.metrics.names import METRICS, Split, TaskKind
from layerprobe.metrics.scores import evaluate_outputs
from layerprobe.progress import Progress, silent
from layerprobe.scoring.values import LayerScores
from layerprobe.serialisation import digest, to_json
from layerprobe.store.stored import stored_result
from layerprobe.tasks.values import Examples, Task
from layerprobe.versions import PROBE_VERSION

PROBE_STEPS = 1000
LOGIT_VARIANCE = 10.0
"""Of a probe's logits under its prior: the L2 penalty is that of weights with this variance over the features."""


def fitted_on(kind: TaskKind) -> Split | None:
    """Return the split that zero-shot scores of a kind of task need beside the one that is scored.

    sts needs none; paraphrase chooses its threshold on the validation split; a probe is fitted on the train split.

    Example:
        >>> fitted_on("sts"), fitted_on("paraphrase"), fitted_on("classification")
        (None, 'validation', 'train')
    """
    splits: dict[TaskKind, Split] = {"paraphrase": "validation", "entailment": "train", "classification": "train"}
    return splits.get(kind)


def zero_shot(
    embeddings: Embeddings,
    task: Task,
    *,
    split: Split = "test",
    fitted: Embeddings | None = None,
    progress: Progress = silent,
) -> LayerScores:
    """Return how well the pretrained embeddings do the task, layer by layer; no model is needed.

    sts: how the cosines rank the pairs. paraphrase: how they tell paraphrases, F1 at the threshold that is best on
    the validation split. entailment, classification: logistic regression on (u, v, |u - v|) or u, see `probe`, fitted
    on the train split; kept in the store.

    Args:
        embeddings: What `extract` gave for the texts of the split.
        task: What to score.
        split: Which of its splits.
        fitted: What `extract` gave for the texts of the split that `fitted_on` names; by default `embeddings` has
            those texts too.
        progress: Told the layers that have a probe.

    Raises:
        MisalignedSamplesError: If a text was not embedded.
        DataError: If all pairs have one cosine at a layer, or one gold score.
    """
    if task.kind in ("entailment", "classification"):
        return _probed(embeddings, fitted or embeddings, task, split, progress)
    chosen_on = fitted_on(task.kind)
    scored = _Pairs.of(embeddings, task.split(split))
    chosen = None if chosen_on in (None, split) else _Pairs.of(fitted or embeddings, task.split(chosen_on))
    by_layer = []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            threshold = None
            if chosen is not None:
                threshold = evaluate_outputs(task.kind, chosen.cosines(layer), chosen.targets).threshold
            outputs = scored.cosines(layer)
            by_layer.append(evaluate_outputs(task.kind, outputs, scored.targets, threshold=threshold).metrics)
    return LayerScores(
        split=split,
        method="cosine",
        primary=task.primary,
        metrics={name: tuple(scores[name] for scores in by_layer) for name in METRICS[task.kind]},
    )


def score(
    model: ModelLike,
    task: Task,
    *,
    split: Split = "test",
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> tuple[LayerScores, Embeddings]:
    """Embed a split of a task at every layer, or take it from the store, and score every layer by `zero_shot`.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        task: What to score.
        split: Which of its splits.
        options: How to load and embed.
        progress: Told what is being done.

    Returns:
        The scores, and the embeddings that they are of.

    Raises:
        ModelError: If the model cannot be had or truncated.
        DataError: As `zero_shot`.
        StoreError: If the store cannot be written.
    """
    checkpoint, fit = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code), fitted_on(task.kind)
    scored, *fitted = (
        extract(checkpoint, task.split(each).texts, options=options, progress=progress)
        for each in (split, *(() if fit is None else (fit,)))
    )
    return zero_shot(scored, task, split=split, fitted=fitted[0] if fitted else None, progress=progress), scored


@contextlib.contextmanager
def naming_layer(layer: int, embeddings: Embeddings) -> Iterator[None]:
    """Name the layer where its outputs cannot be scored.

    Raises:
        DataError: In place of that of `evaluate_outputs`.
    """
    try:
        yield
    except DataError as error:
        raise DataError(f"layer {layer} of {embeddings.model.name} cannot be scored: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pairs:
    """Pairs as rows of embeddings."""

    embeddings: Embeddings
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    targets: NDArray[np.float64]

    @classmethod
    def of(cls, embeddings: Embeddings, pairs: Examples) -> _Pairs:
        first, second = embeddings.rows(pairs.first), embeddings.rows(pairs.second or ())
        return cls(embeddings=embeddings, first=first, second=second, targets=np.array(pairs.targets))

    def cosines(self, layer: int) -> NDArray[np.float64]:
        values = self.embeddings.layer(layer)
        return cosine_scores(values[self.first], values[self.second])


# ---- probes -------------------------------------------------------------------------------------------


def _probed(embeddings: Embeddings, fitted: Embeddings, task: Task, split: Split, progress: Progress) -> LayerScores:
    """Return the scores of a probe on every layer, from the store or fitted now."""
    key = digest([PROBE_VERSION, embeddings.fingerprint, fitted.fingerprint, task.digest, split])
    known = stored_result(embeddings.store, "probes", key, LayerScores)
    if known is not None:
        return known
    train, examples = task.train, task.split(split)
    by_layer = []
    for layer in range(embeddings.n_layers):
        outputs = probe(
            _features(fitted, layer, train), np.array(train.targets), _features(embeddings, layer, examples)
        )
        with naming_layer(layer, embeddings):
            by_layer.append(evaluate_outputs(task.kind, outputs, np.array(examples.targets)).metrics)
        progress(f"probing {embeddings.model.name}", layer + 1, embeddings.n_layers)
    scores = LayerScores(
        split=split,
        method="probe",
        primary=task.primary,
        metrics={name: tuple(each[name] for each in by_layer) for name in METRICS[task.kind]},
    )
    embeddings.store.save_result("probes", key, to_json(scores))
    return scores


def probe(
    train: NDArray[np.float32], targets: NDArray[np.float64], features: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Fit logistic regression on frozen features and return its output for others.

    Each feature is divided by its standard deviation in `train`; the L2 penalty is scikit-learn's with
    C = 10 / features.

    Args:
        train: (n, features).
        targets: (n,) class numbers; every class up to the highest must occur.
        features: (m, features).

    Returns:
        (m, classes) probabilities.
    """
    from sklearn.exceptions import ConvergenceWarning  # takes a second to load
    from sklearn.linear_model import LogisticRegression

    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread == 0] = 1.0  # a feature that is the same everywhere says nothing
    with warnings.catch_warnings():
        # after so many steps the predictions no longer change, even where the gradient is not yet small enough
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=LOGIT_VARIANCE / train.shape[1], max_iter=PROBE_STEPS)
        model.fit((train - mean) / spread, targets.astype(int))
    outputs: NDArray[np.float64] = model.predict_proba((features - mean) / spread).astype(np.float64)
    return outputs


def _features(embeddings: Embeddings, layer: int, examples: Examples) -> NDArray[np.float32]:
    values = embeddings.layer(layer)
    u = values[embeddings.rows(examples.first)]
    if examples.second is None:
        return u
    v = values[embeddings.rows(examples.second)]
    return np.concatenate([u, v, np.abs(u - v)], axis=1)
