"""Estimates of the cost of work: a sentence, numbers, and one row per part. Knows no kind of work."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from layerprobe.context import duration
from layerprobe.results.table import Column, Form, Table

FORMS: dict[str, Form] = {
    "parameters": "{:.2f} M".format,
    "steps": ",",
    "gpu_hours": ".3f",
    "cost": lambda share: f"{100 * share:.1f} %",
}
TITLES = {"gpu_hours": "GPU hours"}
BUSY = 2.0
"""Load from which an estimate mentions it: how many times as long work takes as on an idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated cost of work, which every dry run prints."""

    title: str
    """The work, such as: Fine-tuning electra (3 blocks)."""
    seconds: float | None = None
    """Upper estimate for all of it on an idle machine; None where unknown."""
    load: float = 1.0
    """How many times as long it takes at the machine's current load."""
    computed_on: str = ""
    """Kind of device and precision that the seconds hold for."""
    details: tuple[str, ...] = ()
    """Further sentences."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """One mapping per part of the work, all with the same keys: what distinguishes it, its number of runs, how many
    of them are stored, steps and so on."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The inputs of the estimate by name, as in JSON."""
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.numbers[name]

    @property
    def sentence(self) -> str:
        """The work and its estimated time, as a sentence."""
        on = f" on {self.computed_on}" if self.computed_on else ""
        takes = "" if self.seconds is None else f" takes at most about {duration(self.seconds)}{on}"
        if self.seconds is not None and self.load >= BUSY:
            takes += f"; this machine is busy, so it may take {self.load:.0f} times as long"
        end = "" if self.jobs or self.details[:1] == ("",) else "."
        return " ".join(filter(None, (f"{self.title}{takes}{end}", *self.details)))

    @property
    def table(self) -> Table:
        """One row per part of the work, with totals below."""
        names = list(self.jobs[0]) if self.jobs else []
        columns = (
            Column(name, tuple(job[name] for job in self.jobs), title=TITLES.get(name, ""), form=FORMS.get(name, ""))
            for name in names
        )
        return Table(columns=tuple(columns), title=self.title, notes=self.details)

    @property
    def tables(self) -> tuple[Table | str, ...]:
        """The content for a terminal: the parts of the work as a table, or the sentence."""
        return (self.table,) if self.jobs else (self.sentence,)

    @property
    def record(self) -> dict[str, Any]:
        """The estimate as a mapping for JSON."""
        about = {"title": self.title, "seconds": self.seconds, "load": self.load, "computed_on": self.computed_on}
        return {**about, **self.numbers, **({"jobs": self.jobs} if self.jobs else {}), "sentence": self.sentence}


def together(estimates: Iterable[Estimate], sentence: str) -> Estimate:
    """Return several estimates as one; `{}` in the sentence is replaced by the total time."""
    estimates = tuple(estimates)
    seconds = sum(estimate.seconds or 0.0 for estimate in estimates)
    return Estimate(
        title=" ".join(estimate.sentence for estimate in estimates).removesuffix("."),
        details=(sentence.format(duration(seconds)),),
        numbers={"plans": [estimate.record for estimate in estimates], "seconds": seconds},
    )
