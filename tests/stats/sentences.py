"""Every sentence of statistics and of findings, with examples of every case, as one text that is read in review.

python -m tests.stats.sentences      # writes tests/stats/sentences.txt anew
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from layerprobe.errors import ON_COMMAND_LINE
from layerprobe.interval import Interval
from layerprobe.search.plan import answer
from layerprobe.search.values import SearchSettings
from layerprobe.stats import sentences
from layerprobe.stats.values import AgainstBest, Floor, MarginVerdict
from tests.report.conftest import FINDINGS, HOSTILE, found, pair
from tests.search.worlds import search, world

SNAPSHOT = Path(__file__).with_name("sentences.txt")
FLOOR = Floor(value=50.0, by="always naming the largest class")
Line = tuple[str, str]


def against(
    *scores: float, behind: tuple[float, ...], candidates: tuple[int, ...], tolerance: float = 1.0, **further: object
) -> AgainstBest:
    """Return scores whose intervals reach from 2 below to 1 above."""
    return AgainstBest(
        scores=scores,
        intervals=tuple((score - 2, score + 1) for score in scores),
        behind=behind,
        candidates=candidates,
        level=0.95,
        tolerance=tolerance,
        **further,  # type: ignore[arg-type]
    )


def difference(value: float, half: float, *, items: float | None = 0.5, seeds: float | None = 0.5) -> Interval:
    """Return a difference that reaches so far to both sides."""
    return Interval(
        value=value,
        standard_error=half / 2,
        items_error=items,
        seeds_error=seeds,
        freedom=20.0,
        interval=(value - half, value + half),
        level=0.95,
        n_items=None if items is None else 1500,
        n_seeds=1 if seeds is None else 5,
        unit="pair",
    )


LAYERS = against(57.2, 66.98, 66.5, 60.0, behind=(16.3, 0.9, 3.0, 9.0), candidates=(1, 2))
COMPARED = {
    "one is the best": replace(LAYERS, candidates=(1,)),
    "two may be": LAYERS,
    "nothing is ruled out": replace(LAYERS, candidates=(0, 1, 2, 3)),
    "one is ruled out": replace(LAYERS, candidates=(1, 2, 3)),
    "a smaller one will do": replace(LAYERS, tolerance=17.0),
    "the last one is the best": against(57.2, 66.98, behind=(12.0, 0.0), candidates=(1,)),
    "the first one is the best": against(66.98, 57.2, behind=(0.0, 12.0), candidates=(0,)),
    "a single one": against(66.98, behind=(0.0,), candidates=(0,)),
    "chosen by validation, another is better": replace(LAYERS, chosen=2, candidates=(1,)),
    "above a floor": replace(LAYERS, floor=FLOOR),
    "on the floor": against(51.0, 50.5, behind=(0.5, 1.0), candidates=(0, 1), floor=FLOOR),
    "above a floor of 0": replace(LAYERS, floor=Floor(value=0.0, by="naming the mean for all")),
    "many": against(*range(60, 72), behind=(5.0,) * 12, candidates=tuple(range(3, 12))),
}
DIFFERENCES = {
    "above 0": difference(2.0, 1.0),
    "below 0": difference(-2.0, 1.0),
    "not shown": difference(0.4, 1.0),
    "just above 0": difference(1.0, 0.998),
    "most of the error from items": difference(2.0, 1.0, items=0.49, seeds=0.1),
    "most of the error from seeds": difference(2.0, 1.0, items=0.1, seeds=0.49),
    "one seed": difference(2.0, 1.0, seeds=None),
    "no outputs": difference(2.0, 1.0, items=None),
}


def of_comparisons() -> Iterator[Line]:
    """Yield what is said of scores that are compared with the best."""
    for case, compared in COMPARED.items():
        best = compared.best
        names = [str(number) for number in range(len(compared.scores))]
        headline = f"Layer {best} scores best: {sentences.score_of_best(compared)}"
        yield case, sentences.best_sentence(compared, names, headline, metric="accuracy")
    names = ["large at layer 2", "large at layer 3", "small at layer 2", "small at layer 3"]
    headline = f"{names[1]} scores best: {sentences.score_of_best(LAYERS)}"
    for tolerance in (1.0, 17.0):
        compared = replace(LAYERS, tolerance=tolerance)
        line = sentences.best_sentence(compared, names, headline, metric="accuracy", costs=(3, 4, 1, 2))
        yield f"of several models, tolerance {tolerance:g}", line


def of_differences() -> Iterator[Line]:
    """Yield what is said of differences."""
    for case, error in DIFFERENCES.items():
        yield f"{case}: interval", f"{sentences.range_of(error.interval, error.level)} {sentences.error_sources(error)}"
        yield f"{case}: gain", sentences.gain_in_brackets(error)
        yield f"{case}: from the full model", sentences.from_full_model(error)
        yield f"{case}: against the last layer", sentences.against_last(9, 12, error, "spearman")
    for case, values, errors in (
        ("higher, lower and neither", (2.0, -2.0, 0.4), [*DIFFERENCES.values()][:3]),
        ("higher", (2.0,) * 2, [DIFFERENCES["above 0"]] * 2),
        ("lower", (-2.0,), [DIFFERENCES["below 0"]]),
        ("neither", (0.4, 0.4), [DIFFERENCES["not shown"]] * 2),
        ("neither at one layer", (0.4,), [DIFFERENCES["not shown"]]),
        ("no error", (0.4, -0.1), [None] * 2),
    ):
        about = {"metric": "spearman", "level": 0.95}
        yield case, sentences.differences_sentence("before", "after", range(len(values)), values, errors, **about)  # type: ignore[arg-type]
    yield "no error: gain", sentences.gain_in_brackets(None)
    yield "over all", sentences.drawn_anew_in_all(DIFFERENCES.values())


def of_tasks() -> Iterator[Line]:
    """Yield what is said of several tasks."""
    for n_tasks, best, ends, rivals in itertools.product((1, 3), (2, 8), (None, (0.5, 3.5)), ([], [3], [3, 4])):
        last = [("the last layer", 2.0, ends)] if best != 8 else []
        may_be = sentences.names_phrase(list(map(str, rivals)), "layer") if rivals else ""
        line = sentences.across_sentence(f"Layer {best} of 8", 61.5, last, n_tasks=n_tasks, level=0.95, rivals=may_be)
        yield f"{n_tasks} tasks", line

    other = ("a at layer 2, the highest of its model,", 1.5, (0.5, 2.5))
    for n_tasks, others, may_be in (1, [], ""), (3, [other], "a at layer 2"), (3, [], ""):
        line = sentences.across_sentence("b at layer 3", 63.0, others, n_tasks=n_tasks, level=0.95, rivals=may_be)
        yield f"models, {n_tasks} tasks", line


def of_losses() -> Iterator[Line]:
    """Yield what is said of losses and of objectives."""
    for loss, most in (0.54, 1.04), (0.4, 0.9996), (1.03, 1.04), (-0.04, 1.02), (-2.0, -0.5), (0.4, 0.8), (0.4, None):
        yield f"{loss:g} at most {most}", sentences.loss_phrase(loss, most, 1.0, "spearman")
    for items, seeds in (2743, False), (2743, True), (0, True):
        yield f"{items} needed", sentences.would_settle(items, "pair", seeds=seeds)
    for mean, ends in (1.0, (0.5, 1.5)), (-1.0, (-1.5, -0.5)), (0.2, (-0.5, 0.9)), (1.0, None):
        yield f"an objective, {mean:+g}", sentences.drop_sentence("rtd, gentle", mean, ends, 0.95, pairs=2)


def of_predictions() -> Iterator[Line]:
    """Yield what is said of predictions before training."""
    curves, units = {"InfoNCE": (9.0, 2.0, 1.5, 0.5), "LiDAR": (3.0, 4.0, 5.0, 6.0)}, {"InfoNCE": "nats"}
    read = sentences.highest_and_last(curves, layers=range(1, 4), units=units)
    for flagged in range(2, 4), range(3, 4):
        for grounds in "", read:
            yield f"flagged {flagged}", sentences.look_first_sentence("electra", grounds, flagged)
            for first in range(flagged.start, 4):
                collapsed = range(first, 4)
                sentence = sentences.look_first_sentence("electra", grounds, flagged, collapsed=collapsed)
                yield f"flagged {flagged}, collapsed {collapsed}", sentence
    for grounds in "", read:
        yield "no drop", sentences.no_drop_sentence("electra", 3, grounds)
    probable = sentences.found_drop_sentence((), (), chance_of_drop=0.9504, tolerance=0.5, level=0.95)
    yield "a drop that is probable, and not shown together with others", probable
    for onset, ends in (5, None), (3, None), (3, (0.2, 0.4)):
        yield (
            f"plateau, from layer {onset}",
            sentences.plateau_sentence(
                "CKA",
                model="electra",
                reference="bert",
                plateau=0.83,
                plateau_layers=(1, 2),
                last_value=0.53,
                decline=0.3,
                decline_interval=ends,
                threshold=0.05,
                onset=onset,
                last=4,
                n_blocks=4,
            ),
        )
    for below, last in ([0.9, 1.2], [3.9, 6.9]), ([0.74], [3.0]), ([], []):
        for others, none in ((2, 2), (0, 0)), ((1, 2), (1, 4)):
            parts = {"dropping": (5, 5), "others": others, "none_drop": none if below else (0, 4)}
            yield "a record", sentences.record_sentence("long", below, last, **parts)
    for n, same in itertools.product((None, 128, 2552), (None, 0.001, 0.976, 1.0)):
        yield f"{n} texts, {same} alike", sentences.texts_sentence(n, 2552, same)


def of_blocks() -> Iterator[Line]:
    """Yield what is said of smaller models, and of the weighted sum of layers."""
    for faster, dimensions in ("", None), ("1.9 times as fast [1.8 to 2.0]", (64, 128)):
        kept = sentences.blocks_phrase((1, 5, 6), 6, fewer=0.24, faster=faster, dimensions=dimensions)
        yield "blocks", f"{kept}: {sentences.agreement_phrase(93.2, 61.0)}."
    verdicts: tuple[MarginVerdict, ...] = ("within", "worse", "not shown")
    for verdict, needed in itertools.product(verdicts, ("", "more seeds would settle it")):
        yield verdict, sentences.margin_sentence("3 of 6 blocks", verdict, 1.0, needed)
    for gain in None, DIFFERENCES["above 0"]:
        yield "weighted sum", sentences.weighted_sum_sentence(gain)


def of_searches() -> Iterator[Line]:
    """Yield what is said of searches of one model."""
    evidence, _ = search(world(np.random.default_rng(7), 8, item_error=2.0), SearchSettings())
    opened = answer(evidence)
    yield "open", opened.sentence
    over = replace(opened.decision, run=None, stop="settled", why="it is settled")
    settled = replace(opened, candidates=(4, 5, 6), best_layer=5, chance=0.62, smallest_sufficient=4, decision=over)
    near = tuple(replace(layer, chance_within=0.96) for layer in opened.layers)
    assert opened.doubt is not None
    doubt = replace(opened.doubt, difference=0.3, item_error=1.0, seed_error=0.1, items_needed=6147)
    stopped = replace(opened, decision=replace(over, stop="budget", why="no run fits"), doubt=doubt)
    bare = tuple(replace(layer, runs=int(layer.layer != doubt.rival)) for layer in opened.layers)
    cases = {
        "settled": settled,
        "one candidate": replace(settled, candidates=(5,), chance=0.999, smallest_sufficient=None),
        "decided": replace(settled, candidates=(5,), chance=0.96, layers=near),
        "within the tolerance": replace(settled, layers=near),
        "none smaller": replace(settled, smallest_sufficient=5),
        "the first layer": replace(settled, best_layer=0, smallest_sufficient=0),
        "the last layer, a guess": replace(settled, best_layer=8),
        "nothing to cut": replace(settled, best_layer=8, candidates=(7, 8), smallest_sufficient=8, layers=near),
        "nothing is ruled out": replace(settled, candidates=tuple(range(9))),
        "two are ruled out": replace(settled, candidates=tuple(range(2, 9))),
        "no budget": stopped,
        "no run of the rival": replace(stopped, layers=bare, doubt=None),
        "far apart": replace(stopped, doubt=replace(doubt, difference=29.0)),
        "two are left out, one without a run": replace(settled, candidates=(1, 2, *range(4, 9))),
        "more seeds are no gain": replace(
            stopped, decision=replace(over, stop="gain"), doubt=replace(doubt, items_needed=None)
        ),
        "spoilt": replace(settled, spoilt=3),
    }
    yield from ((case, searched.worded.sentence) for case, searched in cases.items())
    for n_folds in 1, 2:
        for few in (None, 1000):
            of = (1201, 150, 149), (676, 675), "pair"
            yield f"a plan, {n_folds} folds", sentences.data_use_sentences(*of, n_folds=n_folds, epochs=10, few=few)


def of_findings() -> Iterator[Line]:
    """Yield what is said of a finding on the test split, of drops, and of what had been expected."""
    finding = found(pair())
    assert finding.prediction is not None
    assert finding.against_last is not None
    for value, ends in (0.5, (-1.0, 2.0)), (-2.0, (-3.5, -1.0)):
        tested = replace(finding, against_last=replace(finding.against_last, value=value, interval=ends))
        yield f"{value:+g} from the full model", tested.sentence
    for chance in (0.0, 0.0501, 0.4, 0.96):
        layers = tuple(
            replace(layer, chance_within=max(layer.chance_within, chance)) for layer in finding.answer.layers
        )
        worse = finding.answer.worse if chance <= 0.05 else ()
        other = replace(finding, answer=replace(finding.answer, layers=layers, worse=worse))
        yield f"the last layer is within the tolerance by {chance:g}", other.drop_sentence
        for recommended, drop in (9, (10, 11, 12)), (8, (9, 10, 11, 12)), (9, (12,)), (12, ()), (9, ()):
            claim = replace(
                finding.prediction, recommended_layer=recommended, drop_layers=drop, onset=drop[0] if drop else None
            )
            case = f"expected {recommended}, drop {drop}, within by {chance:g}"
            yield case, replace(other, prediction=claim).expectation


def of_whole_findings() -> Iterator[Line]:
    """Yield what is said of whole findings."""
    for case, make in FINDINGS.items():
        if "hostile" in case:
            continue
        made = make()
        assert HOSTILE not in made.summary
        yield f"{case}: headline", made.heading
        yield f"{case}: summary", made.rest
        yield from ((f"{case}: grounds", line) for line in made.grounds)


PARTS = {
    "Compared with the best": of_comparisons,
    "Differences": of_differences,
    "Losses": of_losses,
    "Several tasks": of_tasks,
    "Predictions": of_predictions,
    "Smaller models": of_blocks,
    "Searches": of_searches,
    "Findings": of_findings,
    "Whole findings": of_whole_findings,
}


def snapshot() -> str:
    """Return all of it as text."""
    parts = []
    for title, part in PARTS.items():
        lines = dict.fromkeys(f"{case}\n    {line}" for case, line in part())
        parts.append("\n".join((f"==== {title}", *lines)))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    ON_COMMAND_LINE.set(True)  # as in the tests
    SNAPSHOT.write_text(snapshot())
