"""The result of checking every backend on one model."""

from dataclasses import dataclass

from layerprobe.encoders.backends.backend import TORCH
from layerprobe.encoders.timing import Speedup
from layerprobe.errors import DataError
from layerprobe.names import counted
from layerprobe.results.table import Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFinding:
    """What one backend does for a model, or why it cannot be taken."""

    backend: str
    """As in `BACKENDS`."""
    problem: str | None = None
    """Why it cannot be taken; None where it can."""
    differences: tuple[float, ...] | None = None
    """By layer: the largest difference from torch in float32, as a share of the layer's largest feature; of torch None,
    and where nothing was computed."""
    tokens_per_second: float | None = None
    """In a short measurement; None where nothing was measured."""
    speedup: Speedup | None = None
    """Of torch None, and where nothing was measured."""

    @property
    def finding(self) -> str:
        """Whether it equals torch, or why it cannot be used."""
        if self.differences is None:
            return self.problem or ""
        return f"equals torch at every layer (largest difference {max(self.differences):.0e})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSurvey:
    """What every backend does for a model on this machine."""

    findings: tuple[BackendFinding, ...]
    """torch first."""
    threads: int = 1
    """With which speeds were measured."""

    def __post_init__(self) -> None:
        if not self.usable:
            raise DataError("expected a backend that can be taken, at least torch, got none")

    @property
    def usable(self) -> tuple[BackendFinding, ...]:
        """The backends that can be used, fastest first."""
        can = [finding for finding in self.findings if finding.problem is None]
        return tuple(sorted(can, key=lambda finding: -(finding.tokens_per_second or 0)))

    @property
    def chosen(self) -> str:
        """The backend that `auto` uses: the fastest whose speedup interval is above 1, else torch."""
        faster = [
            (finding.speedup, finding.backend) for finding in self.usable if finding.speedup and finding.speedup[1] > 1
        ]
        return max(faster)[1] if faster else TORCH

    @property
    def reason(self) -> str:
        """Why it is chosen: how much faster than torch it is, or that the fastest other is not faster."""
        measured = [(finding.speedup, finding.backend) for finding in self.usable if finding.speedup]
        if not measured:
            return "no other can be taken"
        (times, low, high), name = max(pair for pair in measured if self.chosen in (TORCH, pair[1]))
        threads = counted(self.threads, "thread")
        figures = f"{times:.2f} times as fast as {TORCH} with {threads}, 95% interval {low:.2f} to {high:.2f}"
        return figures if low > 1 else f"{name} is {'slower' if high < 1 else 'as fast'} ({figures})"

    @property
    def table(self) -> Table:
        """One row per backend: how fast it is, and what was found."""
        speedups = [finding.speedup or (None,) for finding in self.findings]
        return Table(
            columns=(
                Column("backend", [finding.backend for finding in self.findings]),
                Column(
                    "tokens_per_second", [finding.tokens_per_second for finding in self.findings], "tokens/s", ",.0f"
                ),
                Column("speedup", [times for times, *_ in speedups], "times torch", ".2f"),
                Column("interval", [speedup[1:] or None for speedup in speedups], "95% interval", ".2f", interval=True),
                Column("finding", [finding.finding for finding in self.findings]),
            ),
            title="Backends",
            notes=(f"--backend auto takes {self.chosen}: {self.reason}",),
        )
