"""What a search says in worlds whose truth is known, some of whose runs fail: `lp.LayerSearch` alone, nothing trained.

    python benchmarks/search_worlds.py [--n N] [--budget SHARE] [--blocks BLOCKS] [--jobs JOBS] WORLD ...

A world is a curve, then faults with a plus, then with @ what seeds err by (0.7 points): `electra+collapse@1.5`. Scores
are validated on five folds of 100 items, one a seed; over the items of its fold a score errs by 2.5 points, of whose
variance all layers share 80 %. InfoNCE falls with depth, whatever the truth.

Curves: `electra` rises by 8 to layer 9 of 12 and falls by 11 over the rest; `plateau` is level and falls by 11 over
the last three blocks; `flat`; `rising` by 12; `cliffN` rises by 1 and falls by N in one block of the second half,
`cliffNoverW` over W blocks; `hump` has its top at 40 to 90 % of the depth and falls smoothly; `wave` has two tops and
two dips of 1.5; `spike` has one layer 3 above all others; `peaks` has two tops, the later one 0.2 higher.

Faults: `collapse` and `collapse5`: 10 or 5 % of runs score near 0; `bad` and `bad5`: they lose 3 to 15 points;
`collapselast`: 30 % of runs of the last three layers score near 0; `seeds16`: seeds err 16 times as much at the last
layer as at layer 0.

Columns: how often the set holds the best layer; how often a layer at most 0.5 below it is called worse; how often the
last one is said to be worse, and falsely; layers in the set; points that the kept layer is below the best; share of a
sweep that was spent; how often the kept layer is no further behind the best than is said; scores of the last layer.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

import layerprobe as lp

SEEDS, FOLDS, PER_FOLD, ITEM_SD, SHARED, LEVEL = 5, 5, 100, 2.5, 0.8, 65.0
COLUMNS = ("holds", "worse", "named", "falsely", "set", "regret", "spent", "behind", "last")


def curve(name: str, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """Return (layers,) what each layer truly scores."""
    layers = np.arange(blocks + 1)
    x, f = layers / blocks, np.full(blocks + 1, 70.0)
    if name == "rising":
        f = 60 + 12 * x
    elif name == "electra":
        top = round(0.75 * blocks)
        f = np.interp(layers, [0, top, blocks], [62.0, 70.0, 59.0])
    elif name == "plateau":
        f[0] = 64.0
        f[-3:] -= 11 * np.array([1, 2, 3]) / 3
    elif name.startswith("cliff"):
        fall, _, over = name.removeprefix("cliff").partition("over")
        width = int(over or 1)
        top = int(rng.integers(blocks // 2, blocks - width + 1))
        rise = np.interp(layers, [1, top], [70.0, 71.0])
        f = rise - float(fall) * np.clip((layers - top) / width, 0, 1)
        f[0] = 64.0
    elif name == "hump":
        top, steep = rng.uniform(0.4, 0.9), rng.uniform(20, 60)
        f = 70 - steep * (x - top) ** 2
    elif name == "wave":
        f = 68 + 1.5 * np.sin(2 * np.pi * (2 * x + rng.random())) - 4 * (layers == 0)
    elif name == "spike":
        f[0] = 64.0
        f[int(rng.integers(3, blocks - 1))] += 3
    elif name == "peaks":
        tops = rng.integers(2, 5), rng.integers(blocks - 4, blocks - 1)
        f = 66 + sum(h * np.exp(-(((layers - t) / 1.5) ** 2) / 2) for h, t in zip((4.0, 4.2), tops, strict=True))
    elif name != "flat":
        raise SystemExit(f"expected a curve, got {name}")
    return f


class Runs:
    """Scores of any layer and seed."""

    def __init__(self, f: np.ndarray, faults: list[str], seed_sd: float, rng: np.random.Generator) -> None:
        n = len(f)
        root = np.linalg.cholesky(ITEM_SD**2 * (SHARED + (1 - SHARED) * np.eye(n)))
        self.items = np.einsum("ab,fbi->fai", root, rng.standard_normal((FOLDS, n, PER_FOLD))) * np.sqrt(PER_FOLD)
        growth = 16 ** (np.arange(n) / (n - 1) - 0.5) if "seeds16" in faults else np.ones(n)
        self.of_seeds = rng.normal(0, seed_sd, (n, 16)) * growth[:, None]
        share = np.full(n, 0.05 if {"collapse5", "bad5"} & {*faults} else 0.1)
        if "collapselast" in faults:
            share = np.where(np.arange(n) >= n - 3, 0.3, 0.0)
        fails, lost = rng.random((n, 16)) < share[:, None], rng.uniform(3, 15, (n, 16))
        self.collapsed = fails & any(fault.startswith("collapse") for fault in faults)
        self.lost = lost * (fails & any(fault.startswith("bad") for fault in faults))
        self.f, self.rng = f, rng

    def score(self, layer: int, seed: int) -> np.ndarray:
        """Return (items,) of the seed's fold, less `LEVEL` so that items stay within -1 to 1."""
        if self.collapsed[layer, seed]:
            return np.clip(self.rng.normal(2 - LEVEL, 10, PER_FOLD), -100, 100) / 100
        mean = self.f[layer] - LEVEL + self.of_seeds[layer, seed] - self.lost[layer, seed]
        return np.clip(mean + self.items[seed % FOLDS, layer], -100, 100) / 100


def outcome(number: int, world: str, blocks: int, budget: float) -> tuple[float, ...]:
    """Search in a world drawn with a number; return a row of `COLUMNS`."""
    spec, _, sd = world.partition("@")
    name, *faults = spec.split("+")
    rng = np.random.default_rng([66, number])
    f = curve(name, blocks, rng)
    runs = Runs(f, faults, float(sd or 0.7), rng)
    nats = (-2.5 * np.arange(blocks + 1) / blocks).tolist()
    search = lp.LayerSearch(n_blocks=blocks, budget=budget, seeds=SEEDS, folds=FOLDS, readings={"InfoNCE": nats})
    while run := search.ask():
        search.tell(run.layer, run.seed, runs.score(run.layer, run.seed))
    answer = search.answer()
    below, best = f.max() - f, answer.layers[answer.best_layer]
    worse, whole = {*answer.worse}, answer.whole
    named, near = blocks in worse or (whole is not None and whole.shown), {*np.flatnonzero(below <= 0.5).tolist()}
    return (
        any(below[layer] <= 0.01 for layer in answer.candidates),
        bool(worse & near),
        named,
        named and blocks in near,
        len(answer.candidates),
        below[answer.best_layer],
        answer.share,
        below[answer.best_layer] <= (best.behind or 0.0) + 1e-9,
        answer.layers[-1].runs,
    )


def main() -> None:
    """Print a row a world."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("worlds", nargs="+", metavar="WORLD")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--budget", type=float, default=0.15)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    print(f"{'world':24}", *(f"{column:>8}" for column in COLUMNS))
    with ProcessPoolExecutor(args.jobs) as pool:
        for world in args.worlds:
            of = partial(outcome, world=world, blocks=args.blocks, budget=args.budget)
            means = np.mean(np.array([*pool.map(of, range(args.n))], dtype=float), axis=0)
            cells = [
                f"{value:8.2f}" if column in ("set", "regret", "last") else f"{value:8.1%}"
                for column, value in zip(COLUMNS, means, strict=True)
            ]
            print(f"{world:24}", *cells, flush=True)


if __name__ == "__main__":
    main()
