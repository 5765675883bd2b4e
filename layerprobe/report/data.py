"""A study as rows, one a layer, and as CSV. Knows numbers, not how they are drawn or worded."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.seeds import SeedScores, seed_scores
from layerprobe.results.shown import from_layer
from layerprobe.results.table import csv_text
from layerprobe.study.values import Study

SeedSplit = Literal["validation", "test"]
SPLITS: tuple[SeedSplit, ...] = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """Everything a study says about one layer of its model."""

    layer: int
    """Blocks kept."""
    parameters: int
    """Of the model truncated here, without the pooler."""
    cka: float | None
    """Similarity to the compared layer, by CKA or the study's measure; debiased values can be negative. None where the
    layer is left out, as is all that is measured of its embeddings."""
    cka_interval_low: float | None
    """Of the pointwise interval; None where the estimator has none."""
    cka_interval_high: float | None
    compared_layer: int | None
    """The layer that this one is compared with: of the reference, or without one of the model itself."""
    metric: str
    """What the scores are: the primary metric of the task."""
    kept: bool
    """Whether it is the layer to keep: as found, or without a search as recommended."""
    expected: float | None
    """Score over other validation examples and seeds by the search, x 100; None without a search, as what follows."""
    expected_interval_low: float | None
    expected_interval_high: float | None
    chance_best: float | None
    """To be the best layer, 0 .. 1."""
    chance_within: float | None
    """To be no worse than the best by more than the tolerance, 0 .. 1."""
    candidate: bool | None
    """Whether it cannot be told from the best."""
    found_drop: bool | None
    """Whether it is among the final layers found to be worse than the best by more than the tolerance."""
    scan: float | None
    """On the validation split by the scans, their mean, x 100; None where it failed, or there was none."""
    zero_shot: float | None
    """On the test split, x 100; None where the study has no such scores."""
    tmft_mean: float | None
    """On the test split after fine-tuning, x 100; None where the layer was not run."""
    tmft_std: float | None
    """None for one seed."""
    tmft_interval_low: float | None
    """Of the mean, over test items and seeds; None where its error is not known."""
    tmft_interval_high: float | None
    """The same."""
    tmft_seeds: int
    """Runs of this layer; 0 where it was not run."""
    tmft_seed_numbers: tuple[int, ...]
    """The seeds; none where it was not run."""
    tmft_by_seed: tuple[float, ...]
    """On the test split, x 100, by seed."""
    tmft_validation_by_seed: tuple[float, ...]
    """On the validation split, x 100, by seed."""
    tmft_best_seed: int | None
    """By validation; it is named, and its score is not the layer's."""
    drop: bool
    """Whether the prediction flags it."""
    drop_probability: float | None
    """Share of redrawn curves that flag it, 0 .. 1; None where the curve has no intervals."""
    recommended: bool
    """Whether the prediction recommends it."""


def outcomes_by_layer(study: Study) -> dict[int, LayerOutcome]:
    """Return what fine-tuning showed, by layer of the model; empty where none was fine-tuned."""
    return {outcome.layer: outcome for outcome in study.outcomes}


def layer_rows(study: Study) -> tuple[LayerRow, ...]:
    """Return one row for every layer of the model, from layer 0."""
    outcomes = outcomes_by_layer(study)
    return tuple(_row(study, layer, outcomes.get(layer)) for layer in range(study.comparison.model.n_layers))


def _row(study: Study, layer: int, outcome: LayerOutcome | None) -> LayerRow:
    curve, probability, finding = study.comparison.curve, study.prediction.probability, study.finding
    known = finding.answer.layers[layer] if finding and layer >= finding.answer.first_layer else None
    measured = layer >= study.comparison.first_layer
    errors = curve.uncertainty if measured else None
    untrained = study.zero_shot
    low, high = (outcome and outcome.interval) or (None, None)
    return LayerRow(
        layer=layer,
        parameters=study.comparison.model.parameters[layer],
        cka=curve.values[layer] if measured else None,
        cka_interval_low=errors.lower[layer] if errors else None,
        cka_interval_high=errors.upper[layer] if errors else None,
        compared_layer=curve.reference_layers[layer] if measured else None,
        metric=study.metric,
        kept=layer == study.kept_layer,
        expected=known.mean if known else None,
        expected_interval_low=known.interval[0] if known else None,
        expected_interval_high=known.interval[1] if known else None,
        chance_best=known.chance_best if known else None,
        chance_within=known.chance_within if known else None,
        candidate=layer in finding.answer.candidates if finding and known else None,
        found_drop=layer in finding.drop_layers if finding and known else None,
        scan=finding.scanned(layer) if finding else None,
        zero_shot=untrained.own(layer) if untrained else None,
        tmft_mean=outcome.mean if outcome else None,
        tmft_std=outcome.std if outcome else None,
        tmft_interval_low=low,
        tmft_interval_high=high,
        tmft_seeds=len(outcome.seeds) if outcome else 0,
        tmft_seed_numbers=outcome.seeds if outcome else (),
        tmft_by_seed=outcome.scores if outcome else (),
        tmft_validation_by_seed=outcome.validation[outcome.primary] if outcome else (),
        tmft_best_seed=outcome.best_seed if outcome else None,
        drop=layer in study.prediction.drop_layers,
        drop_probability=probability.by_layer[layer] if probability and measured else None,
        recommended=layer == study.prediction.recommended_layer,
    )


def layer_csv(study: Study) -> str:
    """Return the table of layers as CSV: the fields of `LayerRow`, then what the rule read beside CKA, by its name."""
    names, first = [field.name for field in dataclasses.fields(LayerRow)], study.prediction.first_layer
    read = {name: from_layer(first, values) for name, values in study.prediction.read.items()}
    rows = layer_rows(study)
    cells = ([*(getattr(row, name) for name in names), *(by[row.layer] for by in read.values())] for row in rows)
    return csv_text([*names, *read], cells)


def over_seeds(study: Study, outcome: LayerOutcome, split: SeedSplit) -> SeedScores:
    """Return the primary metric of a layer on one split over seeds, the interval at the level of the study."""
    if split == "test":
        return outcome.tested
    scores, error = seed_scores(outcome.validation[outcome.primary], study.level), outcome.validation_error
    return scores if error is None else dataclasses.replace(scores, interval=error.interval)
