"""The paper's experiments: what was run, what it gave, what it costs again. Knows numbers; trains nothing."""

from layerprobe.reproduction.cost import ASSUMPTIONS, Cost, LayerCost, cost
from layerprobe.reproduction.differences import ReproducedLayer, ReproducedScore, Reproduction, reproduced_layer
from layerprobe.reproduction.paper import (
    DataSet,
    Experiment,
    PaperModel,
    PaperScores,
    PlannedModel,
    experiment,
    experiment_names,
    planned_models,
    read_paper,
)

__all__ = [
    "ASSUMPTIONS",
    "Cost",
    "DataSet",
    "Experiment",
    "LayerCost",
    "PaperModel",
    "PaperScores",
    "PlannedModel",
    "ReproducedLayer",
    "ReproducedScore",
    "Reproduction",
    "cost",
    "experiment",
    "experiment_names",
    "planned_models",
    "read_paper",
    "reproduced_layer",
]
