"""Results that the cases of `test_shown` lack: decided, on the floor, refuted; and which words are rare."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from layerprobe.comparison.values import Comparisons
from layerprobe.finetuning.values import TuningResult
from layerprobe.interval import Interval
from layerprobe.prediction.values import RecordPart, TrackRecord
from layerprobe.profiling.run import side_by_side
from layerprobe.profiling.values import Profile
from layerprobe.readings.reading import LayerCurve
from layerprobe.results.shown import Shown
from layerprobe.scoring.score import across_tasks
from layerprobe.scoring.scores import Scores
from layerprobe.scoring.values import LayerScores
from layerprobe.search.ask import LayerSearch
from layerprobe.search.values import SearchAnswer
from layerprobe.stats.values import AgainstBest, Floor
from layerprobe.study.values import Finding
from tests.report.conftest import FINDINGS, PAIRS, changed, model, profile, result, rows, zero_shot
from tests.report.similarities import uncertain_curve
from tests.report.test_shown import CASES, across, found_models, models, run, summaries

FLOOR = Floor(value=40.0, by="always predicting the largest class")
HIGH = Floor(value=90.0, by=FLOOR.by)
BEST, TOLERANCE = 6, 1.0
"""Of `zero_shot(13, 46.0)`: the layer with the highest score; and points that another may be better."""


def against(*candidates: int, behind: float = 3.0, floor: Floor | None = None, first: float = 9.0) -> AgainstBest:
    """Return the untrained layers compared with the best of them, which may be any of these."""
    scores = zero_shot(13, 46.0).scores
    return AgainstBest(
        scores=scores,
        intervals=tuple((score - 2, score + 1) for score in scores),
        behind=tuple(behind if layer == BEST else first for layer in range(13)),
        candidates=candidates,
        level=0.95,
        tolerance=TOLERANCE,
        floor=floor,
    )


def scored(compared: AgainstBest) -> LayerScores:
    """Return the scores of untrained layers that were compared."""
    return dataclasses.replace(zero_shot(13, 46.0), compared=compared, floor=compared.floor)


def last_is_best(candidates: tuple[int, ...] = ()) -> LayerScores:
    """Return scores that rise to the last layer, compared where some may be the best."""
    scores = (50.0, 60.0, 70.0)
    ends = tuple((score - 1, score + 1) for score in scores)
    about = {"intervals": ends, "behind": (21.0, 11.0, 0.0), "level": 0.95, "tolerance": TOLERANCE}
    compared = AgainstBest(scores=scores, candidates=candidates, **about) if candidates else None  # type: ignore[arg-type]
    return LayerScores(
        split="test", method="cosine", primary="spearman", metrics={"spearman": scores}, compared=compared
    )


def tuned(compared: AgainstBest | None = None, floor: Floor | None = None) -> TuningResult:
    """Return three fine-tuned layers, of which the second is best by validation."""
    scores = {1: (60.0, 61.0, 60.5), 2: (70.0, 71.0, 70.4), 3: (50.0, 50.5, 50.2)}
    return result(rows("org/a", "stsb", scores), against=compared, floor=floor)


def of_three(*candidates: int, behind: float) -> AgainstBest:
    """Return three fine-tuned layers compared, of which validation chose the second."""
    means = (60.5, 70.5, 50.2)
    return AgainstBest(
        scores=means,
        intervals=tuple((mean - 1, mean + 1) for mean in means),
        behind=(9.0, behind, 21.0),
        candidates=candidates,
        level=0.95,
        tolerance=TOLERANCE,
        chosen=1,
    )


def other_blocks() -> TuningResult:
    """Return a layer, and blocks that are better by validation."""
    first = rows("org/a", "stsb", {2: (70.0, 71.0)})
    others = [dataclasses.replace(run, blocks=(1, 3), validation={"spearman": 90.0}) for run in first]
    return result(first + others)


def finding(kind: str = "found", **changes: Any) -> Any:
    """Return what was found with some of it changed."""
    return changed(FINDINGS[kind](), **changes)


def stopped(stop: str) -> Any:
    """Return the answer of a search that ended by this."""
    return changed(FINDINGS["found"]().answer, decision__run=None, decision__stop=stop)


def on_test(value: float, ends: tuple[float, float], of: Any = FINDINGS["found"]) -> Any:
    """Return a finding with another difference from the whole model on test."""
    return changed(of(), against_last__value=value, against_last__interval=ends)


def embeddings_alone() -> Any:
    """Return a finding that no block is needed."""
    return changed(answered(chance=0.97, candidates=(0,)), answer__best_layer=0)


def answered(kind: str = "found", *, chance: float, candidates: tuple[int, ...], within: float = 0.97) -> Any:
    """Return a finding whose layer is the best, or within the tolerance, with other chances."""
    old = FINDINGS[kind]().answer
    layers = tuple(
        dataclasses.replace(one, chance_best=chance, chance_within=within) if one.layer == old.best_layer else one
        for one in old.layers
    )
    settled = {"answer__decision__run": None, "answer__decision__stop": "settled", "answer__doubt": None}
    return finding(kind, answer__layers=layers, answer__candidates=candidates, **settled)


def predicted(**changes: Any) -> Any:
    """Return the prediction of a pair with some of it changed."""
    return changed(CASES["drop prediction"](), **changes)


def every_layer() -> SearchAnswer:
    """Return the answer of a search that ran every layer, of which the last is hardly lower than the best."""
    search = LayerSearch(n_blocks=2, tolerance=5.0)
    for seed in range(4):
        for layer, score in enumerate((0.60, 0.711, 0.71)):
            search.tell(layer, seed, score + seed / 1000)
    return search.answer()


def failed_layers() -> Any:
    """Return a finding of which the runs of a layer failed."""
    old = FINDINGS["found"]().answer
    layers = tuple(dataclasses.replace(one, failed=2) if one.layer == 6 else one for one in old.layers)
    return finding(answer__layers=layers)


def among_models(elsewhere: tuple[int, ...]) -> Finding:
    """Return a finding of two models, of which the other one's layers may be the best, and one of whose is enough."""
    one = found_models()
    other = changed(one.others[0], among__candidates=elsewhere, among__smallest_sufficient=4)
    return dataclasses.replace(one, others=(other,))


def known_rule() -> Shown:
    """Return a prediction by a rule whose record is known."""
    of_ten = RecordPart(
        encoders="pretrained ones", models=10, drops=4, caught=3, false_alarms=1, mean_regret=0.4, last_regret=1.5
    )
    parts = (of_ten, dataclasses.replace(of_ten, drops=0, caught=0, false_alarms=2))
    about = {"budget": "paper", "families": 2, "models": 20, "drops": 4, "caught": 3, "false_alarms": 3}
    return changed(
        CASES["drop prediction"](), record=TrackRecord(mean_regret=0.4, median_regret=0.2, parts=parts, **about)
    )


def alike() -> Profile:
    """Return a profile whose layers take the same time."""
    same = profile()
    costs = same.layers[0].costs
    layers = tuple(dataclasses.replace(layer, costs=tuple(map(dataclasses.replace, costs))) for layer in same.layers)
    return dataclasses.replace(same, layers=layers)


def on_the_floor_of_tasks() -> Scores:
    """Return scores on two tasks of which no layer does any."""
    return across_tasks(
        (model("org/a", 12),),
        [dataclasses.replace(one, scores=scored(against(BEST, floor=HIGH))) for one in across().tasks],
    )


def of_tasks() -> Scores:
    """Return scores of two models on four tasks whose best layer is the same."""
    tasks = [
        dataclasses.replace(
            one,
            task=f"{one.task} {n}",
            model=number,
            scores=dataclasses.replace(
                one.scores, metrics={"spearman": tuple(60 + 3 * layer - 20 * number + n / 9 for layer in range(13))}
            ),
        )
        for n in range(8)
        for number in range(2)
        for one in across().tasks[:1]
    ]
    return across_tasks((model("org/a", 12), model("org/b", 12)), tasks)


def gained(low: float, high: float) -> Any:
    """Return summaries of which the best way is this much above or below the first baseline."""
    scores = summaries()
    assert scores.ways
    gain = Interval(value=(low + high) / 2, standard_error=1.0, interval=(low, high), level=0.95, freedom=20.0)
    ways = tuple(dataclasses.replace(way, gains=(gain,) * 4) for way in scores.ways.ways)
    return changed(scores, ways__ways=ways)


def compared(*last: float, error: float = 0.01, alone: bool = False, flat: bool = False) -> Any:
    """Return a comparison whose curve ends so; alone: of a model with itself; flat: by the other normalisation."""
    one: Any = CASES["comparison"]()
    curve = changed(one.curve, values=(*one.curve.values[: -len(last) or None], *last))
    other = one.other_normalization
    values = tuple(tuple(0.5 for _ in row) for row in other.values) if flat else other.values
    return changed(
        one,
        map__effective_shares=((0.6,) * 9, (0.7,) * 9),
        curve=uncertain_curve(curve, error),
        curve__alignment="previous-layer" if alone else curve.alignment,
        other_normalization__values=values,
    )


def closest(half: float) -> Comparisons:
    """Return a model compared with two others, which differ by so much more or less than the interval reaches."""
    first, second = compared(), changed(compared(0.4), reference__name="org/b")
    error = Interval(value=0.18, standard_error=half / 2, interval=(0.18 - half, 0.18 + half), level=0.95, freedom=30.0)
    return Comparisons(comparisons=(first, second), differences=((error,) * 9,))


def differing(*values: float | None) -> Any:
    """Return differences by layer whose intervals reach one point to both sides; None: no error is known."""
    errors = tuple(
        None
        if value is None
        else Interval(value=value, standard_error=0.5, interval=(value - 1, value + 1), level=0.95, freedom=30.0)
        for value in values
    )
    scores = tuple((60.0, 60.0 + (value or 0.4)) for value in values)
    return changed(CASES["differences"](), scores=scores, errors=errors)


VARIANTS: dict[str, Callable[[], Shown]] = {
    "compare: no fall": lambda: compared(0.40),
    "compare: no clear fall": lambda: compared(0.37),
    "compare: perhaps a fall": lambda: compared(error=0.2),
    "compare: no fall of standardised features": lambda: compared(flat=True),
    "compare: alone": lambda: compared(alone=True),
    "compare: alone, undecided": lambda: compared(alone=True, error=0.2),
    "compare: the second is closer": lambda: closest(0.1),
    "compare: the second is perhaps closer": lambda: closest(0.3),
    "differences: higher": lambda: differing(2.0, 3.0, 0.5, 0.0),
    "differences: both": lambda: differing(2.0, -3.0, 0.5, 0.0),
    "differences: none": lambda: differing(0.2, 0.3, 0.5, 0.0),
    "differences: errors not known": lambda: differing(None, None, None, None),
    "score: decided": lambda: scored(against(BEST)),
    "score: probable": lambda: scored(against(5, BEST, behind=0.5, floor=FLOOR)),
    "score: undecided": lambda: scored(against(5, BEST)),
    "score: a smaller one is enough": lambda: scored(against(3, BEST, first=0.9)),
    "score: nothing ruled out": lambda: scored(against(*range(13))),
    "score: nothing ruled out, probable": lambda: scored(against(*range(13), behind=0.5)),
    "score: on the floor": lambda: scored(against(BEST, floor=HIGH)),
    "score: the last layer": last_is_best,
    "score: the last layer, decided": lambda: last_is_best((2,)),
    "score: models, decided": lambda: changed(models(), compared__candidates=(11,)),
    "score: models, undecided": lambda: changed(models(), compared__tolerance=0.1),
    "score: ways, decided": lambda: gained(1.0, 5.0),
    "score: ways, failed": lambda: gained(-5.0, -1.0),
    "finetune: decided": lambda: tuned(of_three(1, behind=0.0)),
    "finetune: probable": lambda: tuned(of_three(0, 1, behind=0.5)),
    "finetune: undecided": lambda: tuned(of_three(0, 1, behind=5.0)),
    "finetune: nothing ruled out": lambda: tuned(of_three(0, 1, 2, behind=5.0)),
    "finetune: nothing ruled out, probable": lambda: tuned(of_three(0, 1, 2, behind=0.5)),
    "finetune: on the floor": lambda: tuned(floor=HIGH),
    "finetune: other blocks": other_blocks,
    "find: decided": lambda: answered(chance=0.97, candidates=(9,)),
    "find: probable": lambda: answered(chance=0.6, candidates=(8, 9)),
    "find: nothing to do": lambda: answered("found, no drop", chance=0.6, candidates=(11, 12)),
    "find: spoilt": lambda: finding(answer__spoilt=3),
    "find: refuted": lambda: on_test(-2.0, (-3.5, -1.0)),
    "find: no difference on test": lambda: on_test(0.5, (-1.0, 2.0)),
    "find: on the floor": lambda: finding(floor=HIGH),
    "find: above a floor": lambda: finding(floor=FLOOR),
    "find: wrongly predicted": lambda: changed(answered(chance=0.97, candidates=(9,)), prediction__recommended_layer=8),
    "find: failed runs": failed_layers,
    "find: few items": lambda: finding(
        answer__doubt__difference=0.3,
        answer__doubt__item_error=1.0,
        answer__doubt__seed_error=0.1,
        answer__doubt__items_needed=6147,
    ),
    "find: final": lambda: finding(final=run(), weights__n_train=3000),
    "find: no fine-tuning needed": lambda: finding(untrained=(99.0,) * 13),
    "find: embeddings": lambda: on_test(2.0, (1.0, 3.0), embeddings_alone),
    "find: embeddings, not shown": lambda: on_test(1.0, (-1.0, 3.0), embeddings_alone),
    "find: several models, one of them": lambda: among_models(()),
    "search: every layer": every_layer,
    "search: no gain": lambda: stopped("gain"),
    "search: all seeds": lambda: stopped("seeds"),
    "search: no budget": lambda: stopped("budget"),
    "reading: no fall": lambda: LayerCurve(values=(1.0, 2.0)),
    "profile: whole": lambda: dataclasses.replace(profile(), layers=profile().layers[-1:]),
    "profile: undecided": alike,
    "profiles: undecided": lambda: side_by_side([profile(), profile("google-bert/bert-base-cased")]),
    "several tasks: one": lambda: across_tasks((model("org/a", 12),), [models().tasks[0]]),
    "several tasks: of several models": of_tasks,
    "several tasks: on the floor": on_the_floor_of_tasks,
    "predict: the last layer": lambda: changed(
        CASES["drop prediction"](), drop_layers=(), onset=None, recommended_layer=8
    ),
    "predict: collapsed": lambda: changed(
        CASES["drop prediction"](), drop_layers=(8,), recommended_layer=7, collapsed=1
    ),
    "predict: unread": lambda: predicted(readable=False),
    "predict: known rule": known_rule,
    "prediction: some items": lambda: dataclasses.replace(
        PAIRS["intervals"](), zero_shot=dataclasses.replace(zero_shot(9, 46.0), n_items=(1000, 5000))
    ),
}

ELSEWHERE = """shrink probe bench recipe adapt pretrain reproduce export check snapshot steps"""
"""Sections of words whose results are made in their own tests, such as those that train."""
CHECKS = """chosen anew; redrawn; rules left out; another budget; objective; added; average; not averaged; model failed;
moved; adapted; fresh head; normalisation; diagnostics; step not run; front; changed; 8 bits; backend; record;
earlier runs; loss; training texts; missing tokens; before fine-tuning; weighted sum; left out; index stays;
index undecided; index rebuilt"""
RARE = (
    "score.last.headline.else",
    *ELSEWHERE.split(),
    *(f"tiles.{name}" for name in ("lost", "agreement", "sum_gain", "texts", "regret", "baseline", "fall")),
    *(f"checks.{name}" for name in re.split(r";\s", CHECKS)),
)
"""Templates, or sections of them, that no case has, by name."""
