"""A study's findings in words and numbers for people. Knows sentences, not HTML and not plots; escapes nothing."""

import re

from layerprobe.comparison.values import Comparison
from layerprobe.metrics.names import metric_title, split_title
from layerprobe.names import counted, distinct_names, plural, short_names
from layerprobe.prediction.values import DropPrediction, Evidence
from layerprobe.results.numbers import (
    capitalised,
    confidence,
    counted_layers,
    interval,
    label,
    number,
    percent,
    redrawn_share,
)
from layerprobe.results.numbers import labels as short_labels
from layerprobe.scoring.values import LayerScores
from layerprobe.similarity.values import SimilarityMap
from layerprobe.stats.sentences import either, spoilt_sentence
from layerprobe.study.values import Finding, Study
from layerprobe.tasks.kind import KINDS

# ---- names --------------------------------------------------------------------------------------------


def labels(study: Study) -> tuple[str, str]:
    """Return short names of model and reference for plots: without organisation or folder, where that is clear."""
    model, reference = short_labels(names(study))
    return model, reference


def names(study: Study) -> tuple[str, str]:
    """Return names of model and reference for sentences, uncut."""
    return short_names(study.comparison.model.name, study.comparison.reference.name)


def reference_labels(study: Study) -> tuple[str, ...]:
    """Return short names of the reference and of further ones, or whole names where that would confuse them."""
    references = [comparison.reference.name for comparison in (study.comparison, *study.further_comparisons)]
    return tuple(map(label, distinct_names([study.comparison.model.name, *references])[1:]))


def measure(heatmap: SimilarityMap) -> str:
    """Return the name of the measure as the start of a sentence, such as `Debiased linear CKA`."""
    return capitalised(heatmap.measure.title)


def features(heatmap: SimilarityMap) -> str:
    """Return the normalization of a map's features, as a title."""
    return "Raw features" if heatmap.measure.normalize == "raw" else "Z-scored features"


# ---- findings: what a figure shows, for captions and for those who cannot see it ----------------------


def title(study: Study) -> str:
    """Return a title that names both models."""
    return names(study)[0] if study.comparison.alone else " compared with ".join(names(study))


def cka_curve_finding(study: Study) -> str:
    """Return what the CKA curve shows."""
    values, evidence = study.comparison.curve.values, study.prediction.evidence
    if evidence is None:
        least, last, final = least_like_before(study.comparison), len(values) - 1, number(values[-1], 3)
        ending = f"the last layer, {last}, {final}"
        if least < last:
            ending = f"layer {least}, {number(values[least], 3)}, and {final} at the last layer, {last}"
        return f"{measure(study.comparison.map)} with the layer before is least at {ending}."
    plateau = f"{number(evidence.plateau, 3)} ({counted_layers(evidence.plateau_layers)})"
    threshold = f"; in a drop, every layer is more than {number(evidence.threshold, 3)} below"
    if not study.prediction.by_plateau:
        threshold = f'; the prediction is by the rule "{study.prediction.rule}"'
    # where the rule read other numbers, its flags and bootstrap samples are of those
    drop = f" {flagged(study.prediction)}{redrawn(study.prediction)}"
    end = f"{number(values[-1], 3)} at the last layer, {len(values) - 1}"
    return (
        f"{measure(study.comparison.map)} with {names(study)[1]} goes from {plateau} to {end}: a decline of"
        f" {decline(evidence)}{threshold}.{'' if study.prediction.read else drop}"
    )


def least_like_before(comparison: Comparison) -> int:
    """Return the layer that is least like the one before, of a model alone."""
    values = comparison.curve.values
    return min(range(comparison.first_layer + 1, len(values)), key=values.__getitem__)


def decline(evidence: Evidence) -> str:
    """Return by how much the curve declines, with its interval where it has one."""
    value, ends = number(evidence.decline, 3), evidence.decline_interval
    return value if ends is None else f"{value} {interval(ends, 3)}"


def redrawn(prediction: DropPrediction) -> str:
    """Return how often resampled texts give the same layer, as a sentence; empty where that is not known."""
    if prediction.same is None:
        return ""
    return f" {redrawn_share(prediction.same)} of bootstrap samples give the same layer, right or not."


def flagged(prediction: DropPrediction) -> str:
    """Return which layers are flagged, and which one is recommended."""
    which, before = "No layer is flagged", ""
    if drop := prediction.drop_layers:
        which = f"{capitalised(counted_layers(drop))} {'is' if len(drop) == 1 else 'are'} flagged"
        before = ", the last one before them," if prediction.recommended_layer == drop[0] - 1 else ""
    return f"{which}; layer {prediction.recommended_layer}{before} is recommended."


def cka_map_finding(heatmap: SimilarityMap, *, alone: bool = False) -> str:
    """Return what a map shows; alone: of a model with itself."""
    rows, (first, column) = heatmap.values, heatmap.first_layers
    cells = [
        (value, i, j)
        for i, row in enumerate(rows)
        for j, value in enumerate(row)
        if i >= first and j >= column and (not alone or j < i)
    ]
    (low, low_i, low_j), (high, high_i, high_j) = min(cells), max(cells)
    if alone:
        return (
            f"Of different layers, {high_j} and {high_i} are the most similar ({number(high, 3)}), {low_j} and {low_i}"
            f" the least ({number(low, 3)}).{_chance(heatmap)}"
        )
    closest, j = max((value, j) for value, i, j in cells if i == len(rows) - 1)
    return (
        f"The most similar pair is layer {high_i} of the model and layer {high_j} of the reference"
        f" ({number(high, 3)}), the least similar layer {low_i} and layer {low_j} ({number(low, 3)})."
        f" The model's last layer is closest to layer {j} of the reference ({number(closest, 3)}).{_chance(heatmap)}"
    )


def _chance(heatmap: SimilarityMap) -> str:
    if heatmap.null is None:
        return ""
    share, bound = percent(1 - heatmap.null.level), number(heatmap.null.maximum_threshold, 3)
    return f" With the samples of one model shuffled, the largest of all pairs exceeds {bound} in {share} of cases."


def score_method(scores: LayerScores, kind: str) -> str:
    """Return how untrained embeddings were scored on a kind of task, as a sentence."""
    title, rules = capitalised(metric_title(scores.primary)), KINDS[kind]
    if scores.method == "probe":
        frozen = "token states" if rules.zero_shot == "own" else "embeddings"
        probe = rules.load("probe")
        fitted = f"{'a linear probe' if probe is None else probe.title} on the frozen {frozen}"
        return f"{title} on {split_title(scores.split)} of {fitted}, fitted on the train split."
    if rules.zero_shot == "own":
        return f"{title} by the {scores.method} of frozen embeddings on {split_title(scores.split)}."
    if rules.threshold is None:
        return f"{title} correlation of cosine and gold score on {split_title(scores.split)}."
    return (
        f"{title} of the cosine on {split_title(scores.split)}, at the threshold that is best on the validation split."
    )


def search_finding(finding: Finding) -> str:
    """Return what the search shows."""
    answer = finding.answer
    if answer.spoilt:
        return spoilt_sentence(answer.spoilt)
    best, level = answer.layers[answer.best_layer], confidence(answer.settings.level)
    best_is = "it" if len(answer.candidates) == 1 else either(answer.candidates)
    scan = {belief.layer: score for belief in answer.layers if (score := finding.scanned(belief.layer)) is not None}
    highest = max(scan, key=scan.__getitem__, default=None)
    many = f"mean of {len(finding.scans)} runs of all layers" if len(finding.scans) > 1 else "run of all layers"
    drawn = "" if highest is None else f" The {many} is highest at layer {highest}, {number(scan[highest])}."
    scored = f"Layer {best.layer} is expected to score {number(best.mean)} {interval(best.interval)}"
    return f"{scored}; {level} sure that the best layer is {best_is}.{drawn}"


def search_reading(finding: Finding) -> str:
    """Return how to read the figure of a search, and which errors its intervals are over."""
    answer, (n_validation, _) = finding.answer, finding.n_items
    parts = ["Line: expected score of the model that is truncated at each layer and fine-tuned."]
    if not answer.spoilt:
        parts.append(f"Shade: its {confidence(answer.settings.level)} interval over new validation data and new seeds.")
    where = f"{n_validation:,} validation examples"
    if finding.n_folds > 1:
        where += f" of its own part of the data ({finding.n_folds} parts)"
    parts.append(f"Dots: one run per seed, each on {where}; hover to see test scores.")
    if finding.scans:
        parts.append(f"Dashed: {counted(len(finding.scans), 'run')} that trained all layers at once.")
    if not answer.spoilt:
        parts.append("Green background: layers that may be the best.")
        if finding.n_folds == 1:
            parts.append(
                "Differences between layers are more certain than the shade suggests: they share the examples."
            )
    if finding.drop_layers:
        parts.append("Diamonds on orange background: drop layers.")
    return " ".join(parts)


def conventions(comparison: Comparison) -> str:
    """Return every convention that the similarities depend on."""
    heatmap, items = comparison.map, plural(comparison.unit)
    median = [f"the median over {heatmap.sigma_samples} {items}"] if heatmap.sigma_samples else []
    parts = [*heatmap.measure.conventions, *median, features(heatmap).lower()]
    parts += [f"{heatmap.n_samples} {items}", _intervals(heatmap)]
    if heatmap.null is not None:
        parts.append(f"{heatmap.null.permutations} permutations for what chance reaches")
    return "; ".join([*parts, f"{comparison.curve.alignment} alignment"])


def _intervals(heatmap: SimilarityMap) -> str:
    errors = heatmap.uncertainty
    if errors is None:
        return "no intervals"
    units = "" if errors.n_clusters is None else f", {errors.n_clusters} documents"
    return f"{confidence(errors.level)} intervals from the {errors.method}{units}"


def file_stem(study: Study) -> str:
    """Return a name for files about this study, of letters, digits, dots and hyphens."""
    return f"layerprobe-{re.sub(r'[^A-Za-z0-9.]+', '-', title(study)).strip('-.')[:100]}"
