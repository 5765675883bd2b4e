"""What an experiment costs before it is run: an estimate from sizes and step counts, not a measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layerprobe.reproduction.paper import Experiment, PlannedModel, read_paper
from layerprobe.results import Protocol

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
    """What fine-tuning at one layer costs, all seeds together."""

    model: str
    """Hub id of the paper."""
    runs_model: str
    """What is run in its place."""
    layer: int
    parameters: float | None
    """Millions, of the paper's model; None where the paper does not tell."""
    runs: int
    """One a seed."""
    steps: int
    """Of all runs."""
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
    layers: tuple[LayerCost, ...]


def cost(
    chosen: Experiment,
    models: tuple[PlannedModel, ...],
    *,
    seeds: tuple[int, ...],
    train: int | None = None,
    protocol: Protocol | None = None,
) -> Cost:
    """Count runs and steps, and estimate GPU hours.

    hours = steps x 6 x parameters x texts a step x tokens a text / (10 TFLOP/s x 3600)

    Args:
        chosen: The experiment.
        models: What is run of it.
        seeds: One run each.
        train: Training pairs; those of the paper's data set by default.
        protocol: The paper's by default.
    """
    protocol, data = protocol or Protocol(), read_paper().data_set(chosen.data)
    pairs = data.train if train is None else train
    steps = protocol.epochs * math.ceil(pairs / protocol.batch_size)
    layers = []
    for model in models:
        for score in chosen.of_model(model.hub_id):
            millions = read_paper().model(model.hub_id).millions(score.layer)
            seconds = None if millions is None else _seconds_a_step(millions, 2 * protocol.batch_size * data.tokens)
            layers.append(
                LayerCost(
                    model=model.hub_id,
                    runs_model=model.runs,
                    layer=score.layer,
                    parameters=millions,
                    runs=len(seeds),
                    steps=len(seeds) * steps,
                    gpu_hours=None if seconds is None else len(seeds) * steps * seconds / 3600,
                )
            )
    return Cost(
        experiment=chosen.name,
        title=chosen.title,
        source=chosen.source,
        data=chosen.data,
        train=pairs,
        tokens=data.tokens,
        seeds=seeds,
        protocol=protocol,
        steps_a_run=steps,
        runs=sum(layer.runs for layer in layers),
        steps=sum(layer.steps for layer in layers),
        gpu_hours=sum(layer.gpu_hours or 0.0 for layer in layers),
        assumptions=ASSUMPTIONS,
        layers=tuple(layers),
    )


def _seconds_a_step(millions: float, tokens: int) -> float:
    return FLOPS_A_PARAMETER * millions * 1e6 * tokens / FLOPS_A_SECOND
