"""Results made by hand, for the places that show results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Step, Verdict
from layerprobe.results.explore import Explored, LayersOf
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, interval_title, millions, probability

MEANS = (61.9, 60.1, 61.9, 66.7, 69.8, 70.6, 69.0, 67.1, 65.1)
CHANCES = (0.001, 0.001, 0.001, 0.001, 0.23, 0.56, 0.17, 0.03, 0.001)
SCORE = Quantity("Spearman × 100", "validation", "higher")
GAIN = Quantity("points of Spearman × 100", "validation", "higher")
TEMPLATES: dict[str, Any] = {
    "find": {
        "cost": "{runs:run}, {time}, {share} of a full sweep",
        "cut": {
            "headline": "keep {kept} of {blocks} blocks",
            "certainty": {
                "decided": "decided: {chance} the best",
                "probable": "probably: {chance} the best, 95 % sure it is {candidates}",
                "else": "undecided: {chance} the best, it may be any of {candidates:n} layers",
            },
            "sentence": (
                "Cut after block {kept}, the model is {gain} points better on test than the whole one, and smaller. "
                "If another layer is better, then by {behind} points at most."
            ),
        },
        "few": {
            "headline": "half of the blocks is too few",
            "certainty": "10.8 points lost, 18.9 at most · you allow 1",
            "sentence": "Blocks 1, 2, 3 and 8 score 40.5 where the whole model scores 51.4. Keep more blocks.",
        },
    },
    "checks": {
        "tested": {"passed": ["On test, never used to choose: 66.9 against 57.9", "2 seeds, 300 pairs"]},
        "predicted": {
            "failed": [
                "What was predicted before training was wrong: layer 1 is 10 points worse",
                "InfoNCE was best there",
            ]
        },
        "ran": {"open": ["Layers 2, 6 and 7 were not trained", "They are inferred from their neighbours"]},
    },
    "steps": {
        "take": {"title": "Take it", "text": "Trains layer 5 once on all labels (1 min) and writes a folder."},
        "surer": {
            "title": "Be surer",
            "text": "4 and 5 differ by 0.8 ± 2.9: seeds decide, not pairs. About 4 more runs, 5 min.",
        },
    },
}
"""Words of the results below, in place of those of their kinds."""


@dataclass(frozen=True, repr=False)
class Cut(Shown):
    """A model of eight blocks of which five are kept, by hand."""

    verdict_: Verdict = Verdict.PROBABLE
    case: str = "cut"
    warnings: tuple[str, ...] = ()
    name: str = "rtd"
    more: int = 3
    """Columns that are shown only where all are asked for."""
    items: int = 0
    """Single items that it knows."""

    @property
    def item_source(self) -> Any:
        """What gives its single items."""
        return self if self.items else None

    def explored(self) -> Explored:
        """Return its single items."""
        return pairs(self.items)

    @property
    def conclusion(self) -> Conclusion:
        return Conclusion(
            kind="find",
            case=self.case,
            verdict=self.verdict_,
            subject=(self.name, "pairs.csv"),
            choice=Choice.upto(8, 5, (4, 5, 6, 7)),
            facts={
                "gain": Fact(
                    value=9.04 if self.case == "cut" else -10.8, split="test", interval=(3.9, 14.1), level=0.95
                ),
                "parameters": Fact(value=-0.29, unit="share"),
                "speed": Fact(value=1.53, unit="times", interval=(1.2, 1.8)),
                "behind": Fact(value=2.0, level=0.95),
                "size": Fact(value=830_000, unit="parameters"),
                "whole_size": Fact(value=1_170_000, unit="parameters"),
                "chance": Fact(value=0.56, unit="chance"),
                "runs": Fact(value=8, unit="count"),
                "time": Fact(value=420, unit="seconds"),
                "share": Fact(value=0.19, unit="share"),
            },
            checks=(
                Check(name="tested", passed=True),
                Check(name="predicted", passed=False),
                Check(name="ran", passed=None),
            ),
            steps=(
                Step(name="take", command=("find", "rtd", "pairs.csv", "--final", "-o", "rtd-5")),
                Step(name="surer", command=("find", "rtd", "pairs.csv", "--budget", "25%")),
            ),
        )

    @property
    def table(self) -> Table:
        return _layers(self.more)

    @property
    def details(self) -> Sequence[Table]:
        size = Chart(lines=(Line("score", "score_interval"),), kind="cost", x="parameters", label="layer")
        runs = Table(
            columns=(
                Column("layer", (0, 1, 3, 4, 5, 8), "keep"),
                Column("parameters", (270_000, 390_000, 610_000, 720_000, 830_000, 1_170_000), form=millions),
                Column("score", MEANS[:6], form=".1f", quantity=replace(SCORE, split="test")),
                Column("score_interval", [(m - 3, m + 3) for m in MEANS[:6]], "95 %", ".1f", interval=True),
            ),
            title="Every run",
            notes=("Scores are those of the last epoch.",),
            charts=(size,),
        )
        return (runs,)

    @property
    def sources(self) -> Mapping[str, str]:
        return {"Model": f"{self.name}, revision 4f1c2", "Data": "pairs.csv, digest 93ab…", "Seeds": "0 and 1"}


def _layers(more: int) -> Table:
    others = (Column(f"statistic_{n}", MEANS, form=".2f", more=True) for n in range(more))
    verdicts = ("", "", "", "", "may be best", "keep", "may be best", "may be best", "the whole model")
    return Table(
        columns=(
            Column("layer", range(9), "keep"),
            Column("parameters", (270_000 + 112_500 * np.arange(9)).tolist(), form=millions),
            Column("expected", MEANS, form=".1f", quantity=SCORE, meaning="Expected score."),
            Column("interval", [(m - 4, m + 4) for m in MEANS], interval_title(0.95), ".1f", interval=True),
            Column("runs", (1, 1, 0, 1, 1, 2, 0, 0, 2), shown=False),
            Column("chance", CHANCES, "chance best", probability),
            Column("verdict", verdicts),
            Column("gain", [m - MEANS[-1] for m in MEANS], form="+.1f", quantity=GAIN, shown=False),
            Column("gain_interval", [(m - 69.1, m - 61.1) for m in MEANS], interval=True, shown=False),
            *others,
        ),
        title="Layer by layer",
        marks=tuple("chosen" if layer == 5 else None for layer in range(9)),
        charts=(Chart(lines=(Line("gain", "gain_interval", run="runs", joined=False),), zero="whole model"),),
        notes=("Spearman × 100 on validation.",),
    )


def pairs(n: int) -> Explored:
    """Return so many pairs, of which each layer gets some wrong."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 26, n) / 5
    values = [np.clip(gold / 5 + rng.normal(0, spread, n), -0.2, 1) for spread in (0.35, 0.2, 0.1)]
    errors = [100 * abs(value - gold / 5) for value in values]
    points = rng.normal(size=(n, 2))
    return Explored(
        task="pairs.csv",
        unit="pair",
        units="pairs",
        n_items=n,
        split="test",
        metric="Spearman × 100",
        form="score",
        texts={
            "first": [f"sentence {i} about cats" for i in range(n)],
            "second": [f"another one, {i}" for i in range(n)],
        },
        gold=gold.tolist(),
        output="cosine",
        error="distance of the ranks, of 100",
        limit=25.0,
        labels=(),
        groups=(
            LayersOf(
                name="rtd",
                layers=("layer 0", "layer 5", "layer 8"),
                scores=(60.0, 70.6, 65.1),
                values=values,
                errors=errors,
                places=[[points], [points * 0.8], [points * 1.1]],
                shares=(0.2, 0.3, 0.4),
            ),
        ),
        start=((0, 2), (0, 1)),
    )
