"""What was found out about the backends for one model."""

from dataclasses import dataclass

from layerprobe.encoders.backends.backend import TORCH
from layerprobe.errors import DataError
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

    @property
    def finding(self) -> str:
        """Whether it equals torch, or why it cannot be taken."""
        if self.differences is None:
            return self.problem or ""
        return f"equals torch at every layer (largest difference {max(self.differences):.0e})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSurvey:
    """What every backend does for a model on this machine."""

    findings: tuple[BackendFinding, ...]
    """torch first."""

    def __post_init__(self) -> None:
        if not self.usable:
            raise DataError("expected a backend that can be taken, at least torch, got none")

    @property
    def usable(self) -> tuple[BackendFinding, ...]:
        """Those that can be taken, the fastest first."""
        can = [finding for finding in self.findings if finding.problem is None]
        return tuple(sorted(can, key=lambda finding: -(finding.tokens_per_second or 0)))

    @property
    def chosen(self) -> str:
        """The fastest of those that can be taken: what `auto` takes."""
        return self.usable[0].backend

    @property
    def reason(self) -> str:
        """Why that one is chosen, in a few words: it is faster than torch, or torch than the next."""
        speeds = {finding.backend: finding.tokens_per_second for finding in self.usable}
        others = [name for name in speeds if name != self.chosen]
        if not others:
            return "no other can be taken"
        other = TORCH if TORCH in others else others[0]
        fast, slow = speeds[self.chosen], speeds[other]
        return f"{fast / slow:.1f} times as fast as {other}" if fast and slow else "the speeds were not measured"

    @property
    def table(self) -> Table:
        """One row per backend: how fast it is, and what was found."""
        return Table(
            columns=(
                Column("backend", [each.backend for each in self.findings]),
                Column("tokens_per_second", [each.tokens_per_second for each in self.findings], "tokens/s", ",.0f"),
                Column("finding", [each.finding for each in self.findings]),
            ),
            title="Backends",
            notes=(f"--backend auto takes {self.chosen}: {self.reason}",),
        )
