"""A study of a tiny model made by hand."""

import dataclasses

from layerprobe.comparison.values import Comparison
from layerprobe.encoders.model import ModelDescription
from layerprobe.finetuning.values import Confirmation, LayerOutcome
from layerprobe.prediction.values import Decline, DropPrediction
from layerprobe.scoring.values import LayerScores
from layerprobe.search.plan import answer
from layerprobe.search.values import Evidence, Score
from layerprobe.similarity.measures.cka import CKA
from layerprobe.similarity.values import SimilarityCurve, SimilarityMap
from layerprobe.study.values import Finding, Provenance, Study

CURVE = (0.9, 0.88, 0.87, 0.4)
HOSTILE = "evil/<script>alert(1)</script>|a|\n# `x` *b* [c](d) {e} \"q\" 'r': - ünï 日本 @all \x85 \u2028"


def described(name: str = "org/model", **changes: object) -> ModelDescription:
    values: dict[str, object] = {
        "name": name,
        "revision": "0123456789abcdef0123456789abcdef01234567",
        "architecture": "bert",
        "n_blocks": 3,
        "hidden_size": 16,
        "norm": "none",
        "dtype": "float32",
        "parameters": (100, 200, 300, 400),
    }
    return ModelDescription(**{**values, **changes})  # type: ignore[arg-type]


def study_of(model: ModelDescription, *, reference: str = "org/reference", sentence: str | None = None) -> Study:
    """A study of a model of three blocks that drops at the last layer."""
    rows = tuple(tuple(value for _ in CURVE) for value in CURVE)
    return Study(
        comparison=Comparison(
            model=model,
            reference=described(reference),
            texts_digest="0" * 64,
            pooling="mean",
            map=SimilarityMap(measure=CKA(), values=rows, n_samples=50),
            curve=SimilarityCurve(values=CURVE, reference_layers=(0, 1, 2, 3), alignment="same-index"),
        ),
        prediction=DropPrediction(
            drop_layers=(3,),
            onset=3,
            recommended_layer=2,
            rule="plateau of CKA",
            evidence=Decline(plateau_layers=(0, 1, 2), plateau=0.88, decline=0.48, wobble=0.015, threshold=0.05),
            sentence=sentence or f"A drop is expected at layer 3 of {model.name}; layer 2 is recommended.",
            baselines={"last layer": 3},
        ),
        provenance=Provenance(
            layerprobe="0.1.0",
            created="2026-11-02T14:20:31+00:00",
            command="layerprobe run",
            settings={},
            task=reference,
            task_kind="sts",
            task_digest="1" * 64,
            texts_digest="0" * 64,
            n_texts=50,
            seeds=(0,),
            device="cpu",
            versions={},
        ),
    )


def confirmed(study: Study, *, sentence: str = "Fine-tuning confirms it.") -> Study:
    """The same with zero-shot scores and a verdict."""

    def outcome(layer: int, score: float) -> LayerOutcome:
        return LayerOutcome(
            layer=layer,
            parameters=100,
            seeds=(0,),
            primary="spearman",
            test={"spearman": (score,)},
            validation={"spearman": (score,)},
        )

    return dataclasses.replace(
        study,
        zero_shot=LayerScores(
            split="test", method="cosine", primary="spearman", metrics={"spearman": (50.0, 51.0, 52.0, 53.25)}
        ),
        confirmation=Confirmation(
            verdict="confirmed",
            primary="spearman",
            compared_layers=(2, 3),
            level=0.95,
            outcomes=(outcome(2, 71.0), outcome(3, 70.0)),
            sentence=sentence,
        ),
    )


def searched(study: Study) -> Study:
    """The same with a search that fine-tuned every layer once and keeps layer 1."""
    values = (60.0, 75.0, 74.0, 46.0)
    scores = tuple(Score(layer=layer, seed=0, value=value) for layer, value in enumerate(values))
    return dataclasses.replace(
        study,
        finding=Finding(
            answer=answer(Evidence(n_blocks=3, scores=scores)),
            primary="spearman",
            parameters=study.comparison.model.parameters,
            runs=(),
            n_folds=1,
            n_items=(1500, 1379),
            seconds_by_layer=(None, 0.5, None, 0.9),
        ),
    )
