"""What an experiment costs before it is run: an estimate from sizes and step counts, not a measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from layerprobe.finetuning.values import Protocol
from layerprobe.reproduction.paper import (
    Before,
    Experiment,
    PaperScores,
    PlannedModel,
    WordSimilarity,
    notes_on,
    read_paper,
)

FLOPS_A_PARAMETER = 6
"""Of a training step, a token: 2 forward and 4 back (Kaplan et al. 2020, arXiv 2001.08361)."""
FLOPS_A_SECOND = 10e12
"""Assumed: rather less than a third of the float32 peak of one RTX 3090, the paper's card."""

ASSUMPTIONS = (
    "an estimate, nothing was measured on a GPU: 6 FLOPs a parameter and token of a training step (Kaplan et al. 2020; "
    "embeddings are counted in, which is too much), all texts of a batch as long as its longest, and an assumed 10 "
    "TFLOP/s, less than a third of the float32 peak of the paper's RTX 3090; scoring the splits is not counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """What fine-tuning at one layer costs, all seeds together, or embedding with a model."""

    model: str
    """Hub id of the paper."""
    runs_model: str
    """What is run in its place."""
    layer: int
    before: Before | None
    """What comes before TMFT; its runs, steps and hours are counted in."""
    random_init: int | None
    """Seed of random weights."""
    parameters: float | None
    """Millions, of the paper's model; None where the paper does not tell."""
    runs: int
    """One a seed, and one a seed before it where word similarity comes first; none where nothing is trained."""
    steps: int
    """Of all runs, without those of domain adaptation."""
    gpu_hours: float | None
    """Estimated for the paper's model; None where its parameters are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an experiment is and what it costs."""

    experiment: str
    title: str
    source: str
    """Where the paper has it."""
    data: str
    """Data set of the paper."""
    train: int
    """Training pairs that steps are counted from."""
    tokens: int
    """Assumed length of a text, padding included."""
    seeds: tuple[int, ...]
    protocol: Protocol
    steps_a_run: int
    runs: int
    steps: int
    gpu_hours: float
    """Estimated, of the layers whose parameters are known."""
    assumptions: str
    """What the estimate is from."""
    notes: tuple[str, ...]
    """What was chosen here, and what a reader of the figures should know."""
    layers: tuple[LayerCost, ...]


def cost(
    chosen: Experiment,
    models: tuple[PlannedModel, ...],
    *,
    seeds: tuple[int, ...],
    train: int | None = None,
    words: int | None = None,
    protocol: Protocol | None = None,
) -> Cost:
    """Count runs and steps, and estimate GPU hours.

    hours = steps x 6 x parameters x texts a step x tokens a text / (10 TFLOP/s x 3600)

    Embedding takes a third of that for every text. Domain adaptation takes what the paper says.

    Args:
        chosen: The experiment.
        models: What is run of it.
        seeds: One run each.
        train: Training pairs; those of the paper's data set by default.
        words: Training pairs of word similarity; the paper's by default.
        protocol: The paper's by default.
    """
    protocol, data = protocol or Protocol(), read_paper().data_set(chosen.data)
    pairs = data.train if train is None else train
    step = protocol.epochs * math.ceil(pairs / protocol.batch_size)
    word_similarity = read_paper().before.word_similarity
    first = word_similarity if words is None else replace(word_similarity, train=words)
    if chosen.pairs:
        layers = [_embedding_cost(model, texts=2 * data.test, tokens=data.tokens) for model in models]
    else:
        layers = [
            _layer_cost(
                model,
                score,
                n_seeds=len(seeds),
                steps=step,
                tokens_a_step=2 * protocol.batch_size * data.tokens,
                words=first,
            )
            for model in models
            for score in chosen.of_model(model.hub_id)
        ]
    return Cost(
        experiment=chosen.name,
        title=chosen.title,
        source=chosen.source,
        data=chosen.data,
        train=pairs,
        tokens=data.tokens,
        seeds=seeds,
        protocol=protocol,
        steps_a_run=step,
        runs=sum(layer.runs for layer in layers),
        steps=sum(layer.steps for layer in layers),
        gpu_hours=sum(layer.gpu_hours or 0.0 for layer in layers),
        assumptions=ASSUMPTIONS,
        notes=notes_on(chosen, models),
        layers=tuple(layers),
    )


def _layer_cost(
    model: PlannedModel,
    score: PaperScores,
    *,
    n_seeds: int,
    steps: int,
    tokens_a_step: int,
    words: WordSimilarity,
) -> LayerCost:
    millions = read_paper().model(model.hub_id).millions(score.layer)
    first = words.epochs * math.ceil(words.train / words.batch_size) if score.before == "word similarity" else 0
    hours = None
    if millions is not None:
        tokens = steps * tokens_a_step + first * 2 * words.batch_size * words.tokens
        hours = n_seeds * _hours(FLOPS_A_PARAMETER, millions, tokens)
        if score.before == "domain adaptation":
            adaptation = read_paper().before.domain_adaptation
            hours += adaptation.hours_of.get(model.hub_id, adaptation.hours)
    return LayerCost(
        model=model.hub_id,
        runs_model=model.runs,
        layer=score.layer,
        before=score.before,
        random_init=score.random_init,
        parameters=millions,
        runs=n_seeds * (2 if first else 1),
        steps=n_seeds * (steps + first),
        gpu_hours=hours,
    )


def _embedding_cost(model: PlannedModel, *, texts: int, tokens: int) -> LayerCost:
    known = read_paper().model(model.hub_id).parameters[-1]
    return LayerCost(
        model=model.hub_id,
        runs_model=model.runs,
        layer=known.layer,
        before=None,
        random_init=None,
        parameters=known.millions,
        runs=0,
        steps=0,
        gpu_hours=_hours(FLOPS_A_PARAMETER // 3, known.millions, texts * tokens),
    )


def _hours(flops: int, millions: float, tokens: int) -> float:
    return flops * millions * 1e6 * tokens / FLOPS_A_SECOND / 3600
