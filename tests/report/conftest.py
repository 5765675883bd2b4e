"""Comparisons, predictions and findings made by hand, as a reader would meet them."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.encoders.model import ModelDescription
from layerprobe.finetuning.outcomes import outcomes
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, Protocol, TuningResult
from layerprobe.interval import Interval
from layerprobe.prediction.values import Decline, DropPrediction
from layerprobe.profiling.values import Cost, LayerProfile, Profile
from layerprobe.scoring.values import LayerScores
from layerprobe.search.plan import answer
from layerprobe.search.values import Evidence, Score, SearchSettings
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import SimilarityCurve, SimilarityMap
from layerprobe.stats.crossed import crossed
from layerprobe.stats.values import AgainstBest, Floor
from layerprobe.study.values import Finding, MadeRun, Prediction, Weights

from .similarities import with_intervals

HOSTILE = "evil/<script>alert(1)</script><!-- & \"quotes\" 'too' ünï 日本 %{x} $$ \\u003c"


def changed(value: Any, /, **changes: Any) -> Any:
    """Return a result with other fields, also of its parts: `answer__spoilt=3` is the answer's."""
    for name, new in changes.items():
        field, _, inner = name.partition("__")
        part = changed(getattr(value, field), **{inner: new}) if inner else new
        value = dataclasses.replace(value, **{field: part})
    return value


def over_seeds(values: Sequence[float], ends: tuple[float, float]) -> Interval | None:
    """Return the mean of values by seed, with given ends of its interval; None for one seed."""
    error = crossed(values, None)
    return None if error is None else dataclasses.replace(error, interval=ends)


def model(name: str, n_blocks: int) -> ModelDescription:
    embeddings, block = 23_837_184, 7_087_872
    return ModelDescription(
        name=name,
        revision="b56ce4a2b1a2d0a7e9d1b3cf5d6ad07b0a0f5f2e",
        architecture="electra",
        n_blocks=n_blocks,
        hidden_size=768,
        norm="none",
        dtype="float32",
        parameters=tuple(embeddings + block * layer for layer in range(n_blocks + 1)),
    )


def curve_values(n_layers: int, drop: Sequence[int]) -> tuple[float, ...]:
    """Nearly flat before the drop, falling in it, a little negative at its end."""
    smooth = [0.93 - 0.012 * layer * 12 / n_layers + 0.01 * math.sin(2.1 * layer) for layer in range(n_layers)]
    fall = dict(zip(drop, [0.75 - 0.77 * (i + 1) / len(drop) for i in range(len(drop))], strict=True))
    return tuple(round(fall.get(layer, value), 4) for layer, value in enumerate(smooth))


def cka_map(diagonal: Sequence[float], columns: int) -> SimilarityMap:
    scale = (columns - 1) / (len(diagonal) - 1)
    values = tuple(
        tuple(round(peak * math.exp(-abs(i * scale - j) / columns) + 0.0, 4) for j in range(columns))
        for i, peak in enumerate(diagonal)
    )
    return SimilarityMap(measure=CKA(), values=values, n_samples=2552)


def pair(
    n_blocks: int = 12,
    reference_blocks: int = 12,
    drop: tuple[int, ...] = (10, 11, 12),
    recommended: int = 9,
    name: str = "google/electra-base-discriminator",
    reference: str = "google-bert/bert-base-cased",
    values: tuple[float, ...] = (),
) -> Prediction:
    described = model(name, n_blocks)
    values = values or curve_values(n_blocks + 1, drop)
    step = reference_blocks / n_blocks
    other = tuple(round(layer * step) for layer in range(n_blocks + 1))
    end = drop[0] if drop else n_blocks
    plateau = tuple(range(max(0, end - 3), end))
    level = statistics.median(values[layer] for layer in plateau)
    return Prediction(
        comparisons=(
            Comparison(
                model=described,
                reference=model(reference, reference_blocks),
                texts_digest="9f2c" * 16,
                pooling="mean",
                map=cka_map(values, reference_blocks + 1),
                curve=SimilarityCurve(
                    values=values,
                    reference_layers=other,
                    alignment="same-index" if reference_blocks == n_blocks else "relative-depth",
                ),
            ),
        ),
        drops=(
            DropPrediction(
                drop_layers=drop,
                onset=drop[0] if drop else None,
                recommended_layer=recommended,
                rule="plateau of CKA",
                evidence=Decline(
                    plateau_layers=plateau, plateau=level, decline=level - values[-1], wobble=0.012, threshold=0.05
                ),
                baselines={
                    "last layer": n_blocks,
                    "best zero-shot layer": min(3, n_blocks),
                    "fixed fraction of depth": math.floor(n_blocks * 0.75 + 0.5),
                },
            ),
        ),
    )


def tuned_run(layer: int, seed: int, parameters: int, validation: float) -> FineTuningRun:
    return FineTuningRun(
        layer=layer,
        seed=seed,
        protocol=Protocol(),
        parameters=parameters,
        primary="spearman",
        best_epoch=1,
        validation={"spearman": validation},
        test={"spearman": round(validation - 4.0 + 0.1 * seed, 2)},
        epochs=(),
        seconds=10.0 * (layer + 1),
        peak_memory=None,
    )


def found(
    before: Prediction,
    *,
    compared: bool = True,
    failures: tuple[str, ...] = (),
    tuned: Sequence[tuple[int, int]] = ((8, 0), (9, 0), (9, 1), (12, 0), (12, 1)),
    n_folds: int = 5,
    tested: bool = True,
    peak: int = 9,
    tolerance: float = 0.5,
) -> Finding:
    """Return what a search found that made runs at layers with seeds."""
    described = before.comparison.model
    layers, last = range(described.n_layers), described.n_blocks
    curve = [82.0 - (3.8 * (layer - peak) if layer > peak else 0.12 * (layer - peak) ** 2) for layer in layers]
    runs = [
        MadeRun(
            fold=seed % n_folds,
            layer=layer,
            seed=seed,
            run=tuned_run(layer, seed, described.parameters[layer], score),
        )
        for layer, seed in tuned
        for score in (round(curve[layer] + 0.3 * math.sin(7 * layer + 3 * seed), 2),)
    ]
    trained = [made.run for made in runs if made.run is not None]
    scores = tuple(Score(layer=run.layer, seed=run.seed, value=run.validation["spearman"]) for run in trained)
    answered = answer(Evidence(n_blocks=last, scores=scores, n_items=1500), SearchSettings(tolerance=tolerance))
    by_layer: dict[int, list[FineTuningRun]] = {}
    for run in trained:
        by_layer.setdefault(run.layer, []).append(run)
    difference = Interval(
        value=7.5,
        standard_error=1.0,
        items_error=0.8,
        seeds_error=0.6,
        freedom=20.0,
        interval=(5.4, 9.6),
        level=0.95,
        n_items=1379,
        n_seeds=2,
    )
    tested = tested and answered.best_layer != last
    seconds = {answered.smallest_sufficient: 0.5, answered.best_layer: 0.6, last: 0.9}
    read = {"InfoNCE": before.comparison.curve.values}
    return Finding(
        model=described,
        task="stsb",
        kind="sts",
        task_digest="41be" * 16,
        versions={"python": "3.11.9", "layerprobe": "0.4.0", "torch": "2.8.0"},
        prediction=dataclasses.replace(before.drop, rule="fall of InfoNCE", read=read),
        comparison=Comparisons(comparisons=before.comparisons) if compared else None,
        answer=answered,
        primary="spearman",
        runs=tuple(runs),
        n_folds=n_folds,
        n_items=(1500, 1379),
        outcomes=tuple(outcome_of(by_layer[layer]) for layer in sorted(by_layer)),
        against_last=difference if tested else None,
        proof_cost=2 * (last + 1) if tested else 0,
        rounds_by_layer=tuple(by_round(seconds.get(layer), last=layer == last) for layer in layers),
        weights=Weights(directory=f"layer-{answered.best_layer:03}-seed-0", kept=False),
        untrained=zero_shot(described.n_layers, 46.0).scores,
        failures=failures,
    )


def by_round(seconds: float | None, *, last: bool) -> tuple[float, ...]:
    """Seven rounds of these seconds; the last layer is slower and faster by a fifteenth in some."""
    return () if seconds is None else tuple(seconds * (1 + last * share) for share in (0, 0, 0, 0, 0, -1 / 15, 1 / 15))


def outcome_of(runs: Sequence[FineTuningRun]) -> LayerOutcome:
    test = tuple(run.test["spearman"] for run in runs)
    return LayerOutcome(
        layer=runs[0].layer,
        parameters=runs[0].parameters,
        seeds=tuple(run.seed for run in runs),
        primary="spearman",
        test={"spearman": test},
        validation={"spearman": tuple(run.validation["spearman"] for run in runs)},
        error=crossed(test, None, metric="spearman", difference=False),
    )


def zero_shot(n_layers: int, level: float) -> LayerScores:
    spearman = tuple(round(level + 9 * math.sin(3 * layer / n_layers) - 0.4 * layer, 2) for layer in range(n_layers))
    metrics = {"spearman": spearman, "pearson": tuple(score - 0.8 for score in spearman)}
    return LayerScores(split="test", method="cosine", primary="spearman", metrics=metrics)


def profile(name: str = "google/electra-base-discriminator", n_blocks: int = 12, *, speed: float = 1.0) -> Profile:
    described = model(name, n_blocks)
    layers = tuple(
        LayerProfile(
            layer=layer,
            parameters=described.parameters[layer],
            costs=tuple(_cost(layer, length, size, speed) for length in (16, 128) for size in (1, 32)),
        )
        for layer in range(n_blocks + 1)
    )
    return Profile(
        model=described,
        layers=layers,
        pooling="mean",
        device="cpu",
        hardware="AMD EPYC",
        threads=2,
        attn="auto",
        rounds=5,
        repeats=5,
        warmup=2,
        max_seconds=1.0,
        seed=0,
        memory="rise of the resident memory",
        versions={"python": "3.11.9", "torch": "2.8.0"},
        created="2026-11-20T20:20:20+00:00",
    )


def _cost(layer: int, length: int, size: int, speed: float) -> Cost:
    seconds = (0.001 + 1e-5 * layer * length * size**0.9) / speed
    return Cost(
        length=length,
        batch_size=size,
        flops=14_000_000 * layer * length,
        seconds=seconds,
        seconds_low=0.9 * seconds,
        seconds_high=1.2 * seconds,
        repeats=25,
        peak_memory=None if size == 1 else 400_000_000 + 20_000_000 * layer,
    )


def rows(
    model: str, task: str, scores: dict[int, tuple[float, ...]], failed: tuple[int, int] | None = None
) -> list[FineTuningRun]:
    about: dict[str, Any] = {"model": model, "task": task, "seconds": 1.0}
    made = [
        dataclasses.replace(tuned_run(layer, seed, 1000 * (layer + 1), score), test={"spearman": score}, **about)
        for layer, by_seed in scores.items()
        for seed, score in enumerate(by_seed)
    ]
    lost = [] if failed is None else [dataclasses.replace(made[0], layer=failed[0], seed=failed[1])]
    return made + [dataclasses.replace(run, validation={}, test={}, error="the loss became <nan>") for run in lost]


def result(
    *curves: list[FineTuningRun], against: AgainstBest | None = None, floor: Floor | None = None
) -> TuningResult:
    by_curve = [outcomes([run for run in runs if not run.error]) for runs in curves]
    return TuningResult(
        level=0.95,
        runs=tuple(run for runs in curves for run in runs),
        outcomes=tuple(outcome for curve in by_curve for outcome in curve),
        floors=(floor,) * len(curves),
        compared=(against,) * len(curves),
    )


TUNED = result(
    rows("org/a", "stsb", {1: (70.0, 71.0), 2: (80.0,)}, failed=(2, 1)),
    rows("org/a", "pairs", {1: (60.0,)}),
    rows(HOSTILE, "stsb", {3: (60.0,)}),
    rows(HOSTILE, "pairs", {3: (55.0,)}),
)


MEASURED = (0.67, 0.41, 0.40, 0.39, 0.37, 0.35, 0.39, 0.38, 0.22)
"""CKA of the embedded RTD model against the embedded MLM model."""
CAUTIONS = (
    "layers 5 to 8 of rtd: one of 768 features holds 19 % of the variance (layer 8) and at least 31 % of its HSIC:"
    " similarity follows outlier features and hides the others: compare with --normalize zscore",
)


def _measured() -> Prediction:
    plain = pair(8, 8, drop=(8,), recommended=7, name="embedded/rtd", reference="embedded/mlm", values=MEASURED)
    return with_intervals(plain, ("google/bert_uncased_L-8_H-256_A-4", "random-init"), CAUTIONS)


def _hostile() -> Prediction:
    return pair(name=HOSTILE, reference=f"{HOSTILE} </script>")


PAIRS: dict[str, Callable[[], Prediction]] = {
    "plain": functools.cache(pair),
    "hostile": functools.cache(_hostile),
    "hostile intervals": functools.cache(
        lambda: with_intervals(_hostile(), (f"{HOSTILE} 2", f"{HOSTILE} 3"), (f"{HOSTILE} caution",))
    ),
    "intervals": functools.cache(_measured),
}
_MAKERS: dict[str, Callable[[], Finding]] = {
    "found": lambda: found(
        pair(drop=(4, 5, 6, 7, 8, 9, 10, 11, 12), recommended=3), failures=("206 duplicate texts were removed.",)
    ),
    "found alone": lambda: found(pair(), compared=False, tested=False),
    "found hostile": lambda: found(PAIRS["hostile intervals"](), failures=(HOSTILE,)),
    "found, no drop": lambda: found(pair(drop=(), recommended=12), peak=12),
    "found in one run": lambda: found(_measured(), tuned=((5, 0),), tested=False, peak=5),
    "tiny": lambda: found(
        pair(n_blocks=3, reference_blocks=3, drop=(3,), recommended=2), tuned=((1, 0), (2, 0), (3, 0)), peak=2
    ),
}
FINDINGS: dict[str, Callable[[], Finding]] = {kind: functools.cache(make) for kind, make in _MAKERS.items()}


@pytest.fixture
def plain() -> Prediction:
    return PAIRS["plain"]()


@pytest.fixture
def searched() -> Finding:
    """A finding that disagrees with the prediction."""
    return FINDINGS["found"]()


@pytest.fixture
def measured() -> Prediction:
    """A pair whose similarities have intervals, diagnostics and further references."""
    return PAIRS["intervals"]()
