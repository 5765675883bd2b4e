"""The search of `layerprobe.search` on recorded runs: it asks for one, and gets its scores. Knows numbers only."""

from dataclasses import dataclass

from layerprobe.errors import DataError
from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.values import RunName, TunedLayers
from layerprobe.search.answer import answer
from layerprobe.search.plan import Schedule
from layerprobe.search.values import Evidence, Score, SearchSettings

SCANNED: Weighting = "falling"
"""The weighting of the scans that a search has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a replayed search."""

    layer: int
    stated: tuple[int, ...]
    """The set that it says holds the best layer."""
    sufficient: int | None
    """The smallest layer that it says is within half a point of the best; None if it says so of none."""
    spent: int
    """In block-steps."""
    seeds: tuple[int, ...]
    """Positions of the TMFT seeds that it looked at."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Searches on the records of one model."""

    tuned: TunedLayers
    """With errors over validation items."""
    steps: tuple[float, ...] | None = None
    """How far each layer lies from the one before, see `Evidence`."""
    infonce: tuple[float, ...] | None = None
    """By layer, see `Evidence`."""

    @property
    def scans(self) -> bool:
        """Whether there is a scan, with errors."""
        errors = self.tuned.validation_errors
        return errors is not None and errors.weighting == SCANNED

    def search(self, budget_steps: float, *, scan: bool = False, first: int = 0, at_a_time: int = 1) -> Found | None:
        """Search until it ends by itself or the next run would exceed a budget in block-steps.

        A seed is left, where there are three, to score the choice on. The search is given the seeds, and the scans, in
        a circle from the one at position `first` on.

        Returns:
            None where the budget is too small for the first run.
        """
        n_blocks, n_seeds = self.tuned.n_layers - 1, len(self.tuned.seeds)
        settings = SearchSettings(budget=1.0, seeds=n_seeds - 1 if n_seeds > 2 else n_seeds, scan=scan)
        share = min(budget_steps / settings.full_sweep(n_blocks), 1.0)
        schedule = Schedule(SearchSettings(budget=share, seeds=settings.seeds, scan=scan), at_a_time)
        runs: tuple[RunName, ...] = ()
        try:
            while list(schedule.begin(self.evidence(runs, first=first))) or schedule.pending:
                run = schedule.end()
                assert run is not None
                layers = range(n_blocks + 1) if run.scan else [run.layer]
                runs += tuple((layer, run.seed, run.scan) for layer in layers)
        except DataError:
            return None
        return self.answered(runs, settings, first=first)

    def answered(self, runs: tuple[RunName, ...], settings: SearchSettings | None = None, *, first: int = 0) -> Found:
        """Return the search's answer after some runs."""
        evidence = self.evidence(runs, first=first)
        result = answer(evidence, settings)
        seeds = {(seed + first) % len(self.tuned.seeds) for _, seed, scanned in runs if not scanned}
        return Found(
            layer=result.best_layer,
            stated=result.candidates,
            sufficient=result.smallest_sufficient,
            spent=evidence.spent,
            seeds=tuple(sorted(seeds)),
        )

    def evidence(self, runs: tuple[RunName, ...], *, first: int = 0) -> Evidence:
        """Return what runs scored on validation, with their errors over items; seeds count from the first."""
        tuned, errors = self.tuned, self.tuned.validation_errors
        assert errors is not None
        scans, n_seeds = self.tuned.whole_scans(SCANNED), len(tuned.seeds)
        scores = tuple(
            Score(
                layer=layer,
                seed=seed,
                value=(
                    scans[(seed + first) % len(scans)].validation[layer]
                    if scanned
                    else tuned.validation[layer][(seed + first) % n_seeds]
                ),
                scan=scanned,
            )
            for layer, seed, scanned in runs
        )
        return Evidence(
            n_blocks=tuned.n_layers - 1,
            scores=scores,
            item_covariance=tuple(map(tuple, errors.covariance(runs).tolist())),
            steps=self.steps,
            infonce=self.infonce,
            n_items=round(errors.units),
        )
