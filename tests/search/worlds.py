"""Models whose true quality at every layer is known, with runs that err over items and seeds as real ones do."""

from dataclasses import dataclass

import numpy as np

from layerprobe.search.plan import next_run
from layerprobe.search.posterior import Array
from layerprobe.search.values import Decision, Evidence, Score, SearchSettings


@dataclass(frozen=True, eq=False)
class World:
    truth: Array
    """(layers,): f."""
    steps: Array
    """(n_blocks,)."""
    runs: Array
    """(layers, seeds): scores of fine-tuning runs."""
    influences: Array
    """(layers, seeds, items)."""
    n_folds: int = 1
    """Seeds validate on items of their own where there are several."""
    infonce: Array | None = None
    """(layers,)."""

    @property
    def n_blocks(self) -> int:
        return len(self.truth) - 1

    def evidence(self, names: list[tuple[int, int]]) -> Evidence:
        """Of scores named by layer and seed."""
        psi = [self.influences[name] for name in names] or np.zeros((0, 1))
        folds = np.array([seed % self.n_folds for _, seed in names])
        covariance = np.array(psi) @ np.array(psi).T * (folds[:, None] == folds)
        return Evidence(
            n_blocks=self.n_blocks,
            scores=tuple(Score(layer=layer, seed=seed, value=float(self.runs[layer, seed])) for layer, seed in names),
            item_covariance=tuple(map(tuple, covariance.tolist())),
            steps=tuple(self.steps.tolist()),
            n_items=self.influences.shape[-1] * self.n_folds,
            n_folds=self.n_folds,
            infonce=None if self.infonce is None else tuple(self.infonce.tolist()),
        )


def world(
    rng: np.random.Generator,
    n_blocks: int,
    *,
    item_error: float = 0.6,
    seed_error: float = 0.5,
    n_items: int = 400,
    seeds: int = 5,
    n_folds: int = 1,
    slope: tuple[float, float] | None = None,
) -> World:
    """Draw a model; `item_error` is that of the difference of two distant layers, in points.

    With a slope, its mean and deviation, InfoNCE is known, of which a nat is worth that many points.
    """
    layers = np.arange(n_blocks + 1)
    apart = np.abs(layers[:, None] - layers)
    steps = rng.lognormal(0.0, 1.0, n_blocks)
    place = np.concatenate([[0.0], np.cumsum(steps / steps.sum())])
    spread, length = rng.lognormal(np.log(2.0), 0.7), rng.lognormal(np.log(0.25), 0.6)
    truth = 70 + _draw(rng, spread**2 * _matern(np.abs(place[:, None] - place) / length))
    truth[0] -= abs(rng.normal(0.0, 6.0))

    # all layers share three times the variance that they have of their own; a run has some of its own
    own = item_error**2 / 2 * np.exp(-apart / 5)
    layer_items = 3 * own[0, 0] + own
    root, run_items = np.linalg.cholesky(layer_items + 1e-9 * np.eye(len(layer_items))), 0.06 * item_error**2
    shape, n = (n_blocks + 1, seeds), n_blocks + 1
    of_seed = np.arange(seeds) % n_folds
    items = (root @ rng.standard_normal((n, n_folds)))[:, of_seed]
    influences = (root @ rng.standard_normal((n_folds, n, n_items)) / np.sqrt(n_items))[of_seed].transpose(1, 0, 2)
    own_influences = rng.standard_normal((*shape, n_items)) * np.sqrt(run_items / n_items)
    infonce = None
    if slope is not None:
        infonce = 2.0 + _draw(rng, 0.5**2 * _matern(apart / n_blocks / 0.3))
        truth = truth + rng.normal(*slope) * (infonce - infonce.mean())
    return World(
        truth=truth,
        steps=steps,
        runs=truth[:, None] + items + rng.normal(0.0, np.hypot(seed_error, run_items**0.5), shape),
        influences=influences + own_influences,
        n_folds=n_folds,
        infonce=infonce,
    )


def search(world: World, settings: SearchSettings) -> tuple[Evidence, list[Decision]]:
    """Search as a user would; return all evidence and every decision, the last of which stops."""
    names: list[tuple[int, int]] = []
    decisions: list[Decision] = []
    while True:
        evidence = world.evidence(names)
        decisions.append(next_run(evidence, settings))
        run = decisions[-1].run
        if run is None:
            return evidence, decisions
        names.append((run.layer, run.seed))


def _matern(distance: Array) -> Array:
    return (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance)


def _draw(rng: np.random.Generator, covariance: Array) -> Array:
    return np.linalg.cholesky(covariance + 1e-9 * np.eye(len(covariance))) @ rng.standard_normal(len(covariance))
