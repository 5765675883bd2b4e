"""The frozen values that travel between stages, to and from JSON.

Knows what each stage hands to the next. All fields are plain Python values, so a result can be written down,
compared and read back; arrays of embeddings stay in the store. Layers count from 0, the output of the
embedding module; truncating at layer l keeps the embeddings and blocks 1 .. l.
"""

from layerprobe.results.adaptation import Adaptation, AdaptationMetrics, AdaptationProtocol
from layerprobe.results.finetuning import (
    Confirmation,
    EpochMetrics,
    FineTuningRun,
    LayerOutcome,
    Protocol,
    SavedSeeds,
    Verdict,
)
from layerprobe.results.metrics import METRICS, Metric, Split, TaskKind, metric_title, primary_metric
from layerprobe.results.models import ATTENTION, ModelDescription, Pooling, check_attn, check_layers
from layerprobe.results.prediction import DropPrediction, DropProbability, Evidence
from layerprobe.results.profiles import Cost, LayerProfile, Profile
from layerprobe.results.serialisation import digest, from_json, to_bytes, to_dict, to_json
from layerprobe.results.similarity import (
    NEIGHBOUR_MEASURES,
    Alignment,
    Comparison,
    Comparisons,
    CurveUncertainty,
    Difference,
    Estimator,
    Interval,
    Kernel,
    LayerDiagnostics,
    LayerScores,
    MapUncertainty,
    Matrix,
    Measure,
    MeasureName,
    Normalize,
    PermutationNull,
    ScoreMethod,
    SimilarityCurve,
    SimilarityMap,
    check_choice,
    check_level,
)
from layerprobe.results.studies import Provenance, Study
from layerprobe.results.sweeps import FailedRun
from layerprobe.results.tasks import LABEL_KINDS, PAIR_KINDS, Examples, Task, TextFile

__all__ = [
    "ATTENTION",
    "LABEL_KINDS",
    "METRICS",
    "NEIGHBOUR_MEASURES",
    "PAIR_KINDS",
    "Adaptation",
    "AdaptationMetrics",
    "AdaptationProtocol",
    "Alignment",
    "Comparison",
    "Comparisons",
    "Confirmation",
    "Cost",
    "CurveUncertainty",
    "Difference",
    "DropPrediction",
    "DropProbability",
    "EpochMetrics",
    "Estimator",
    "Evidence",
    "Examples",
    "FailedRun",
    "FineTuningRun",
    "Interval",
    "Kernel",
    "LayerDiagnostics",
    "LayerOutcome",
    "LayerProfile",
    "LayerScores",
    "MapUncertainty",
    "Matrix",
    "Measure",
    "MeasureName",
    "Metric",
    "ModelDescription",
    "Normalize",
    "PermutationNull",
    "Pooling",
    "Profile",
    "Protocol",
    "Provenance",
    "SavedSeeds",
    "ScoreMethod",
    "SimilarityCurve",
    "SimilarityMap",
    "Split",
    "Study",
    "Task",
    "TaskKind",
    "TextFile",
    "Verdict",
    "check_attn",
    "check_choice",
    "check_layers",
    "check_level",
    "digest",
    "from_json",
    "metric_title",
    "primary_metric",
    "to_bytes",
    "to_dict",
    "to_json",
]
