"""The paper's figures beside ours. Knows numbers over seeds and curves, no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from layerprobe.comparison.values import Comparison
from layerprobe.finetuning.values import LayerOutcome, Protocol
from layerprobe.metrics.seeds import pareto_front, seed_scores
from layerprobe.prediction.values import DropPrediction
from layerprobe.reproduction.paper import Before, PaperPair, PaperScores, PlannedModel
from layerprobe.similarity.values import Measure

FAR = 2.0
"""Standard deviations of our seeds; a difference beyond is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedScore:
    """One metric on one split; everything x 100."""

    split: Literal["validation", "test"]
    metric: str
    paper: float | None
    """Mean over the paper's seeds; None where it gives no figure."""
    values: tuple[float, ...]
    """Ours, by seed."""
    mean: float
    """Ours, over seeds."""
    std: float | None
    """Ours, over seeds; None for one."""
    interval: tuple[float, float] | None
    """Of our mean, Student's t at 95 %; None for one seed."""
    difference: float | None
    """Ours less the paper's."""
    deviations: float | None
    """The difference in standard deviations of our seeds; None without a difference or a deviation above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedLayer:
    """One model truncated at one layer."""

    model: str
    """Hub id of the paper."""
    runs_model: str
    """What was run in its place."""
    layer: int
    before: Before | None
    """What came before TMFT."""
    random_init: int | None
    """Seed of random weights; None for the trained ones."""
    parameters: int
    """Of what was run."""
    seeds: tuple[int, ...]
    best_seed: int
    """By validation; named, and not what is compared."""
    scores: tuple[ReproducedScore, ...]
    """Validation and test, the primary metric first."""

    def score(self, split: str, metric: str) -> ReproducedScore:
        """Return one score."""
        return next(each for each in self.scores if (each.split, each.metric) == (split, metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """A figure of the paper whose chain was not run, because it was not said what the step before TMFT learns from."""

    model: str
    """Hub id of the paper."""
    before: Before
    """What comes before TMFT."""
    layer: int
    test: dict[str, float]
    """The paper's, x 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The models and layers that no other beats in both parameters and primary test score, by parameters."""

    paper: tuple[tuple[str, int], ...]
    """By the paper's figures, of what was run: hub id and layer."""
    ours: tuple[tuple[str, int], ...]
    """By ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """An experiment, done again."""

    experiment: str
    source: str
    """Where the paper has it."""
    task: str
    """What was learnt, as the user gave it."""
    protocol: Protocol
    primary: str
    layers: tuple[ReproducedLayer, ...]
    """In the order of the paper."""
    not_run: tuple[NotRun, ...]
    front: Front | None
    """Where the experiment shows one."""
    sentence: str
    """How near the scores are."""
    notes: tuple[str, ...]
    """What was chosen or replaced here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedPair:
    """CKA of a model with a masked language model, beside what the paper's fine-tuning gave."""

    paper: PaperPair
    runs_model: str
    """What was run in place of the model."""
    runs_reference: str
    """What was run in place of the reference."""
    curve: tuple[float, ...]
    """Debiased CKA by layer."""
    lower: tuple[float, ...]
    """Of the 95 % interval, by layer."""
    upper: tuple[float, ...]
    biased: tuple[float, ...]
    """Biased CKA by layer."""
    drop_layers: tuple[int, ...]
    """Flagged by the rule on the debiased curve."""
    bears_out: bool
    """Whether it is as the paper claims: where its scores drop, ours of CKA do."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityReproduction:
    """An experiment of CKA, done again."""

    experiment: str
    source: str
    """Where the paper has it."""
    task: str
    """Whose test split the texts are of."""
    n_texts: int
    """Distinct texts."""
    measure: Measure
    pairs: tuple[ReproducedPair, ...]
    """In the order of the paper."""
    sentence: str
    notes: tuple[str, ...]
    """What was chosen or replaced here."""


def reproduced_layer(
    paper: PaperScores, model: PlannedModel, ours: LayerOutcome, metrics: Sequence[str]
) -> ReproducedLayer:
    """Set the outcome of fine-tuning at a layer beside the paper's figures."""
    return ReproducedLayer(
        model=model.hub_id,
        runs_model=model.runs,
        layer=paper.layer,
        before=paper.before,
        random_init=paper.random_init,
        parameters=ours.parameters,
        seeds=ours.seeds,
        best_seed=ours.best_seed,
        scores=(
            *(_score("validation", each, paper.validation.get(each), ours.validation[each]) for each in metrics),
            *(_score("test", each, paper.test.get(each), ours.test[each]) for each in metrics),
        ),
    )


def _score(
    split: Literal["validation", "test"], metric: str, paper: float | None, ours: Sequence[float]
) -> ReproducedScore:
    found = seed_scores(ours)
    difference = None if paper is None else found.mean - paper
    return ReproducedScore(
        split=split,
        metric=metric,
        paper=paper,
        values=found.values,
        mean=found.mean,
        std=found.std,
        interval=found.interval,
        difference=difference,
        deviations=None if difference is None or not found.std else difference / found.std,
    )


def judgement(layers: Sequence[ReproducedLayer], metric: str) -> str:
    """Return how near the test scores are to the paper's, as a sentence."""
    compared = [(layer, layer.score("test", metric)) for layer in layers]
    compared = [(layer, score) for layer, score in compared if score.difference is not None]
    if not compared:
        return "The paper gives no figure to compare with."
    layer, farthest = max(compared, key=lambda pair: abs(pair[1].difference or 0.0))
    after = f" after {layer.before}" if layer.before else ""
    far = f"the farthest is {layer.model} at layer {layer.layer}{after}, by {farthest.difference:+.2f}"
    judged = [score.deviations for _, score in compared if score.deviations is not None]
    if not judged:
        return f"With one seed, or equal ones, no difference can be judged; {far}."
    near = sum(abs(deviations) <= FAR for deviations in judged)
    return f"{near} of {len(judged)} test scores lie within {FAR:g} standard deviations of our seeds; {far}."


def front_of(layers: Sequence[ReproducedLayer], metric: str, millions: Sequence[float | None]) -> Front:
    """Return which models and layers no other beats, by the paper and by us.

    Args:
        layers: What was run.
        metric: The score.
        millions: The paper's parameters of each.
    """
    points = [(layer, layer.score("test", metric), size) for layer, size in zip(layers, millions, strict=True)]
    of_paper = [
        (layer.model, layer.layer, size, score.paper)
        for layer, score, size in points
        if size is not None and score.paper is not None
    ]
    ours = [(layer.model, layer.layer, layer.parameters, score.mean) for layer, score, _ in points]
    return Front(
        paper=tuple((name, layer) for name, layer, _, _ in pareto_front(of_paper, lambda x: x[2], lambda x: x[3])),
        ours=tuple((name, layer) for name, layer, _, _ in pareto_front(ours, lambda x: x[2], lambda x: x[3])),
    )


def reproduced_pair(
    paper: PaperPair,
    model: PlannedModel,
    reference: PlannedModel,
    comparison: Comparison,
    biased: Comparison,
    prediction: DropPrediction,
) -> ReproducedPair:
    """Set a CKA curve beside what the paper's fine-tuning gave.

    The paper claims that a drop of CKA is necessary for a drop of scores: only scores that drop where CKA does
    not speak against it.
    """
    errors = comparison.curve.uncertainty
    assert errors is not None  # debiased CKA has intervals
    return ReproducedPair(
        paper=paper,
        runs_model=model.runs,
        runs_reference=reference.runs,
        curve=comparison.curve.values,
        lower=errors.lower,
        upper=errors.upper,
        biased=biased.curve.values,
        drop_layers=prediction.drop_layers,
        bears_out=prediction.drops or not paper.drops,
        sentence=_pair_sentence(paper, prediction),
    )


def _pair_sentence(paper: PaperPair, prediction: DropPrediction) -> str:
    scores = (
        f"its scores drop from {paper.best:.2f} at layer {paper.best_layer} to {paper.last:.2f} at {paper.last_layer}"
        if paper.drops
        else f"its scores do not drop: the last layer, {paper.last_layer}, is the best with {paper.last:.2f}"
    )
    layers = ", ".join(map(str, prediction.drop_layers))
    ours = f"our CKA drops at layers {layers}" if layers else "our CKA does not drop"
    verdict = {
        (True, True): "as the paper claims",
        (True, False): "against the paper's claim that CKA must drop, too",
        (False, True): "which the paper's claim allows: a drop of CKA alone is not sufficient",
        (False, False): "as the paper claims",
    }
    return f"{paper.model}: {scores}; {ours}, {verdict[paper.drops, prediction.drops]}."
