"""A model -> the numbers by layer that rules read, those that are asked for. What was computed before is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from layerprobe.comparison.compare import cluster_numbers, compare, diagnostics
from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, extract, measure_tokens
from layerprobe.progress import Progress, silent
from layerprobe.readings.values import SELF_CKA, LayerCurve, Views
from layerprobe.readings.views import VIEW_METRICS, view_metrics
from layerprobe.scoring.zero_shot import probed, zero_shot
from layerprobe.serialisation import digest, to_json
from layerprobe.similarity.inference import MIN_UNITS, curve_uncertainty
from layerprobe.similarity.ranks import rank_influences
from layerprobe.similarity.values import LayerDiagnostics, SimilarityCurve
from layerprobe.store.stored import stored_result
from layerprobe.tasks.kinds.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.versions import RANK_VERSION

RANK = "effective rank"
DIAGNOSTICS = {
    "mean cosine": "mean_cosine",
    RANK: "effective_rank",
    "intrinsic dimension": "intrinsic_dimension",
    "top dimension share": "top_dimension_share",
}
"""What rules call each field of `LayerDiagnostics` that they read."""
TOKEN_METRICS = ("prompt entropy", "curvature")
"""Of token states."""
LABEL_FREE = (*TOKEN_METRICS, *VIEW_METRICS)
"""The metrics of Skean et al. 2025."""
LABELLED = ("zero-shot", "probe")
"""What needs labels; the probe is for kinds of tasks that have one beside the cosines."""


def readings(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    names: Collection[str] = (SELF_CKA, *DIAGNOSTICS, *LABEL_FREE),
    *,
    task: Task | None = None,
    views: Views | None = None,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> dict[str, LayerCurve]:
    """Return numbers by layer of a model by name; those of a kind come together, so there can be more than asked for.

    Args:
        checkpoint: The model.
        texts: What it embeds, for all that needs no labels.
        names: Of `SELF_CKA`, `DIAGNOSTICS`, `LABEL_FREE` and `LABELLED`.
        task: For what needs labels: its validation split is scored.
        views: How copies of texts are made for the label-free metrics.
        options: How to load and embed.
        progress: Told what is being done.

    Raises:
        DataError: If a name is none of these, or needs a task and there is none.
        LayerProbeError: If something cannot be measured; see the stages.
    """
    if unknown := set(names) - {SELF_CKA, *DIAGNOSTICS, *LABEL_FREE, *LABELLED}:
        raise DataError(f"expected names of numbers by layer, got {', '.join(sorted(unknown))}")
    found: dict[str, LayerCurve] = {}
    if not set(names).isdisjoint(TOKEN_METRICS):  # first: the same pass embeds the texts
        tokens = measure_tokens(checkpoint, texts, options=options, progress=progress)
        found["prompt entropy"] = LayerCurve(values=tokens.prompt_entropy, standard_errors=tokens.prompt_entropy_errors)
        found["curvature"] = LayerCurve(values=tokens.curvature, standard_errors=tokens.curvature_errors)
    if not set(names).isdisjoint((SELF_CKA, *DIAGNOSTICS)):
        embedded = extract(checkpoint, texts, options=options, progress=progress)
        alone = compare(embedded, embedded, alignment="previous-layer", device=options.device, progress=progress)
        found |= {SELF_CKA: _self_curve(alone.curve), **diagnosed(alone.model_diagnostics)}
    if of_views := set(names) & set(VIEW_METRICS):
        by_name = view_metrics(checkpoint, texts, of_views, views=views, options=options, progress=progress)
        found |= {what: LayerCurve(values=values) for what, values in by_name.items()}
    if not set(names).isdisjoint(LABELLED):
        if task is None:
            raise DataError(f"expected a task for {' and '.join(sorted(set(names) & set(LABELLED)))}, got texts alone")
        found |= labelled_readings(checkpoint, task, options=options, progress=progress)
    return found


def labelled_readings(
    checkpoint: Checkpoint, task: Task, *, options: Options, progress: Progress = silent
) -> dict[str, LayerCurve]:
    """Return zero-shot scores on the validation split, and those of a probe where zero-shot is by cosines."""
    validated = extract(checkpoint, task.validation.texts, options=options, progress=progress)
    kind = KINDS[task.kind]
    probe = kind.zero_shot == "cosine" and kind.probe is not None
    fit = "train" if probe else kind.fitted_on
    fitted = None if fit is None else extract(checkpoint, task.split(fit).texts, options=options, progress=progress)
    scores = {"zero-shot": zero_shot(validated, task, split="validation", fitted=fitted, progress=progress)}
    if probe:
        scores["probe"] = probed(validated, task, split="validation", fitted=fitted, progress=progress)
    return {what: LayerCurve(values=each.scores) for what, each in scores.items()}


def rank_curve(embeddings: Embeddings, *, level: float, documents: Mapping[str, str] | None = None) -> LayerCurve:
    """Return the effective rank of every layer, with its errors; made once for stored embeddings.

    Args:
        embeddings: What `extract` gave.
        level: Confidence level of intervals.
        documents: Where each text comes from, if texts of one document are not independent.

    Returns:
        Without errors where there are fewer than five texts or documents.

    Raises:
        DegenerateLayerError: If a layer is constant or has fewer than four texts.
        DataError: If there is no document for a text.
    """
    known = diagnosed(diagnostics(embeddings))[RANK]  # refuses layers that have no rank
    clusters = None if documents is None else cluster_numbers(embeddings.texts, documents)
    if len(embeddings.texts if clusters is None else set(clusters)) < MIN_UNITS:
        return known
    key = digest([RANK_VERSION, embeddings.fingerprint, level, clusters])
    found = stored_result(embeddings.store, "ranks", key, LayerCurve)
    if found is None:
        each = [rank_influences(embeddings.layer(layer)) for layer in range(embeddings.n_layers)]
        uncertainty = curve_uncertainty(
            known.values,
            [influences for _, influences in each],
            level=level,
            clusters=None if clusters is None else np.array(clusters),
        )
        found = LayerCurve(values=known.values, standard_errors=uncertainty.standard_errors, uncertainty=uncertainty)
        embeddings.store.save_result("ranks", key, to_json(found))
    return found


def layer_curve(curve: SimilarityCurve) -> LayerCurve:
    """Return a similarity curve as rules read it."""
    errors = None if curve.uncertainty is None else curve.uncertainty.standard_errors
    return LayerCurve(values=curve.values, standard_errors=errors, uncertainty=curve.uncertainty)


def _self_curve(curve: SimilarityCurve) -> LayerCurve:
    """Return CKA of each layer with the one before; layer 0 has none before it and repeats the value of layer 1.

    So it is no value of its own: what reads the curve and counts layers begins with layer 1.
    """
    found = layer_curve(curve)
    errors = found.standard_errors
    return LayerCurve(
        values=(found.values[1], *found.values[1:]),
        standard_errors=None if errors is None else (errors[1], *errors[1:]),
    )


def diagnosed(layers: Sequence[LayerDiagnostics]) -> dict[str, LayerCurve]:
    """Return the diagnostics that every layer has, by name."""
    values = {what: [getattr(layer, field) for layer in layers] for what, field in DIAGNOSTICS.items()}
    return {what: LayerCurve(values=tuple(each)) for what, each in values.items() if each and None not in each}
