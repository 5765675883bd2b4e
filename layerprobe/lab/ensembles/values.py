"""Weighted averages of the outputs of runs: their scores, gain and cost."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from layerprobe.errors import DataError
from layerprobe.metrics.names import check_primary, metric_title, points
from layerprobe.names import listed, short_name
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, millions
from layerprobe.stats.sentences import error_sources, gain_in_brackets
from layerprobe.stats.values import CrossedInterval

ChosenBy = Literal["line", "pair", "greedy"]
"""How the weights are chosen by the validation split, see `CHOICES`."""
CHOICES: dict[ChosenBy, str] = {
    "line": "of two, the best of all from 0 and 1 to 1 and 0 in steps of 0.05",
    "pair": "every two, each with the best weights in steps of 0.05",
    "greedy": "forward selection with replacement, 20 additions (Caruana et al. 2004)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A candidate of the ensemble: a layer of a model, fine-tuned with each seed."""

    label: str
    """Such as `layer 3`, with the model or the seed where that tells members apart."""
    model: str
    layer: int
    parameters: int
    """Of the truncated model, without the pooler."""
    shares: int | None
    """Members with the same number are layers of one joint run, whose blocks are run once; None: a model of its own."""
    weight: float
    """In the average, 0 .. 1; 0 where it takes no part."""
    validation: tuple[float, ...]
    """The primary metric of this one alone by seed, x 100."""
    test: tuple[float, ...]
    """The primary metric of this one alone by seed, x 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleCost:
    """The inference cost of an ensemble: every member's model, and of layers of one run only the deepest."""

    parameters: int
    blocks: int
    """Blocks that a text goes through."""
    flops: int | None = None
    """A text of `length` tokens; None where it was not measured."""
    seconds: float | None = None
    """One text of `length` tokens at a time, the models one after the other; None where it was not measured."""
    length: int | None = None
    """Tokens a text."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ensemble(Shown):
    """A weighted average of the outputs of runs of one task, compared with the best single one."""

    task: str
    kind: str
    primary: str
    """The metric that chose the weights and the single one."""
    choice: ChosenBy
    seeds: tuple[int, ...]
    """One ensemble each; empty where members are of different seeds, or seeds are the members."""
    members: tuple[Member, ...]
    """All that were given, those of weight 0 too."""
    best: int
    """Number of the member with the highest mean validation score, which the ensemble is compared with."""
    validation: dict[str, tuple[float, ...]]
    """Of the ensemble by metric and seed, x 100."""
    test: dict[str, tuple[float, ...]]
    """Of the ensemble by metric and seed, x 100."""
    thresholds: tuple[float | None, ...]
    """By seed: chosen on the validation split, where the kind has one."""
    gain: CrossedInterval | None
    """Test score of the ensemble less that of the best single one; None where nothing is known of its error."""
    cost: EnsembleCost
    single_cost: EnsembleCost
    """Of the best single one."""

    def __post_init__(self) -> None:
        check_primary(self.primary, self.test, what="the metrics of an ensemble")
        if not 0 <= self.best < len(self.members):
            raise DataError(f"expected the number of one of {len(self.members)} members as the best, got {self.best}")

    @property
    def single(self) -> Member:
        """The best single member by validation."""
        return self.members[self.best]

    @property
    def used(self) -> tuple[Member, ...]:
        """Members with a positive weight, the highest first."""
        return tuple(sorted((member for member in self.members if member.weight), key=lambda chosen: -chosen.weight))

    @property
    def score(self) -> float:
        """Mean of the primary metric on the test split over seeds, x 100."""
        return fmean(self.test[self.primary])

    @property
    def single_score(self) -> float:
        """The same of the best single one."""
        return fmean(self.single.test)

    @property
    def table(self) -> Table:
        """One row per member, and one for the average."""
        members, title = self.members, metric_title(self.primary)
        validation = [*(member.validation for member in members), self.validation[self.primary]]
        test = [*(member.test for member in members), self.test[self.primary]]
        best = [*(number == self.best for number in range(len(members))), False]
        return Table(
            columns=(
                Column("member", (*(member.label for member in members), "average"), title="what"),
                Column("model", (*(member.model for member in members), None), form=short_name),
                Column("layer", (*(member.layer for member in members), None), shown=False),
                Column("weight", (*(member.weight for member in members), 1.0), form=".2f"),
                Column("parameters", (*(member.parameters for member in members), self.cost.parameters), form=millions),
                Column("validation", tuple(map(fmean, validation)), title=f"validation {title}", form=".2f"),
                Column(
                    "test",
                    tuple(map(fmean, test)),
                    title=f"test {title}",
                    form=".2f",
                    quantity=points(self.primary, "test"),
                ),
                Column("scores", tuple(test), title="by seed", form=".2f"),
                Column("flag", tuple("best alone" if it else None for it in best)),
            ),
            title="What was averaged",
            charts=(
                Chart(
                    lines=(Line("test", seeds="scores"),),
                    name="ensemble",
                    x="member",
                    chosen="best alone by validation",
                ),
            ),
            marks=tuple("chosen" if it else None for it in best),
        )

    @property
    def sentence(self) -> str:
        """The gain of the average with its interval and cost, as a sentence."""
        title, single = metric_title(self.primary), self.single
        if len(self.used) == 1:
            return (
                f"On the validation split nothing scores higher than {self.used[0].label} alone: there is no ensemble. "
                f"It scores {self.single_score:.2f} on test ({title} x 100)."
            )
        members = ", ".join(f"{member.label} ({member.weight:.2f})" for member in self.used)
        gained = self.score - self.single_score
        return (
            f"The average of {members} scores {self.score:.2f} on test, {gained:+.2f} {title} x 100 compared "
            f"with {single.label}, the best single one by validation {gain_in_brackets(self.gain)} {self._cost}"
        )

    @property
    def _cost(self) -> str:
        cost, single = self.cost, self.single_cost
        sentence = (
            f"It runs {cost.blocks} blocks and has {cost.parameters / 1e6:.1f} M parameters, against {single.blocks} "
            f"and {single.parameters / 1e6:.1f} M"
        )
        if cost.seconds is not None and single.seconds is not None:
            sentence += f"; a text of {cost.length} tokens takes {1e3 * cost.seconds:.1f} ms against "
            sentence += f"{1e3 * single.seconds:.1f}"
        return f"{sentence}."

    @property
    def heading(self) -> str:
        """The gain of the average in a few words."""
        if len(self.used) == 1:
            return f"{self.used[0].label} alone scores highest: no ensemble"
        gained, unsure = self.score - self.single_score, self.gain is None or self.gain.sign == 0
        more = f"{numbers.number(abs(gained))} {'more' if gained >= 0 else 'less'}"
        return f"The average scores {more} than the best single one{', not significant' if unsure else ''}"

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `layerprobe.lab.page`."""
        title, gain, cost, single = metric_title(self.primary), self.gain, self.cost, self.single_cost
        gained = numbers.signed(self.score - self.single_score)
        bounds = "no interval" if gain is None else numbers.interval(gain.interval)
        facts = [
            f"test {title} {numbers.number(self.score)}, gain {gained} {bounds}",
            f"{cost.blocks} blocks, {numbers.millions(cost.parameters)} parameters; the best single one "
            f"{single.blocks}, {numbers.millions(single.parameters)}",
        ]
        if cost.seconds and single.seconds and cost.flops and single.flops:
            time, alone = (numbers.significant(1e3 * price) for price in (cost.seconds, single.seconds))
            flops, least = (numbers.significant(price / 1e9) for price in (cost.flops, single.flops))
            facts += [f"{time} ms for a text of {cost.length} tokens, {alone} alone"]
            facts += [f"{flops} GFLOPs per text, {least} alone"]
        return {
            "kind": "ensemble",
            "about": f"{' + '.join(member.label for member in self.used)} on {self.task}",
            "lead": (self.sentence,),
            "facts": facts,
            "sources": {
                "Task": f"{self.task}, {self.kind}",
                "Weights": f"by {title} on the validation split: {CHOICES[self.choice]}",
                "Seeds": listed([str(seed) for seed in self.seeds]) if self.seeds else "of each member",
                "Interval": None if gain is None else error_sources(gain),
            },
            "terms": ("Ensemble",),
        }

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.task}: {self.sentence}"
