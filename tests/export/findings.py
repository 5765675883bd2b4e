"""A finding of a tiny model made by hand."""

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.encoders.model import ModelDescription
from layerprobe.prediction.values import Decline, DropPrediction
from layerprobe.search.plan import answer
from layerprobe.search.values import Evidence, Score
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import SimilarityCurve, SimilarityMap
from layerprobe.study.values import Finding, Weights

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


def finding_of(model: ModelDescription, *, reference: str = "org/reference") -> Finding:
    """What was found of a model of three blocks: every layer was fine-tuned once, and layer 1 is kept."""
    rows = tuple(tuple(value for _ in CURVE) for value in CURVE)
    comparison = Comparison(
        model=model,
        reference=described(reference),
        texts_digest="0" * 64,
        pooling="mean",
        map=SimilarityMap(measure=CKA(), values=rows, n_samples=50),
        curve=SimilarityCurve(values=CURVE, reference_layers=(0, 1, 2, 3), alignment="same-index"),
    )
    scores = tuple(Score(layer=layer, seed=0, value=value) for layer, value in enumerate((60.0, 75.0, 74.0, 46.0)))
    return Finding(
        model=model,
        task=reference,
        kind="sts",
        task_digest="1" * 64,
        versions={},
        prediction=DropPrediction(
            drop_layers=(3,),
            onset=3,
            recommended_layer=2,
            rule="plateau of CKA",
            evidence=Decline(plateau_layers=(0, 1, 2), plateau=0.88, decline=0.48, wobble=0.015, threshold=0.05),
            baselines={"last layer": 3},
        ),
        comparison=Comparisons(comparisons=(comparison,)),
        answer=answer(Evidence(n_blocks=3, scores=scores)),
        primary="spearman",
        runs=(),
        n_folds=1,
        n_items=(1500, 1379),
        weights=Weights(directory="layer-001-seed-0", kept=False),
        untrained=(50.0, 51.0, 52.0, 53.25),
    )
