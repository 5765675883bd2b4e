"""How often the set of frozen layers holds the best one, and what layers chosen in other ways lose, on real data.

`python benchmarks/bench_probing.py CASES`, a folder that `frozen_cases.py` made. For each model and task, the
items (groups, where there are; pairs and queries else) are halved at random, again and again; each half makes a set.

    truth      the layer with the highest mean score over all halves: what it scores on so many items of this kind
    in         share of halves whose set holds it
    in, halves the same with the errors that halves of these items have: their variance is (1 - 1/2) of that of new
               items, as of samples without replacement. Only this can come near 95 %, where layers are near each other;
               where one layer is far ahead it is 100 %
    rivals     mean size of the set, of so many layers
    regret     points that a layer chosen on one half scores less on the other half than the truth, mean over halves:
               by us (the highest score), LOES with and without labels, the last layer, two thirds of the depth

LOES (Batra et al. 2026, arXiv 2605.23033), one layer: the lowest of the mean squared residual of ridge regression with
penalty 1e-3 on the rows that it is fitted on, + 1 - isotropy, which is the mean over the standard deviation of the
eigenvalues of the covariance; without labels 1 - isotropy alone. Pairs and queries have no label of a row.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from frozen_cases import Case
from numpy.typing import NDArray

from layerprobe.comparison.arrays import Layer, as_layers
from layerprobe.errors import DegenerateLayerError
from layerprobe.probing.linear import scaled
from layerprobe.probing.probes import UNITS, Fitted, Problem
from layerprobe.probing.run import Board
from layerprobe.probing.targets import as_groups, as_targets
from layerprobe.probing.values import ProbeSettings
from layerprobe.stats.best import state
from layerprobe.stats.crossed import item_covariance, item_units, least_variance

Array = NDArray[np.float64]
SETTINGS = ProbeSettings(foldings=1)
HALF = 0.5


def scaled_or_none(layer: Layer, *, shifted: bool) -> Layer | None:
    """Return a layer on one scale; None where it is the same in all rows."""
    try:
        return scaled(layer, shifted=shifted)[0]
    except DegenerateLayerError:
        return None


class Halves:
    """A case whose halves are scored."""

    def __init__(self, case: Case) -> None:
        self.layers = as_layers(case.embeddings)
        n = len(case.embeddings)
        self.targets = as_targets(case.targets, n, kind=case.kind)  # type: ignore[arg-type]
        self.groups = as_groups(case.groups, n)
        self.rows = np.arange(len(self.targets.targets))
        self.outputs: list[Array] | None = None
        if case.kind in ("pairs", "queries"):  # nothing is fitted: outputs of all items are those of halves
            problem = self._problem(self.rows, fitted=False)
            self.outputs = [
                np.empty(0) if varies is None else problem.outputs(varies).outputs[0]
                for varies in (scaled_or_none(layer, shifted=False) for layer in self.layers)
            ]

    def halved(self, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the items of two halves, groups undivided."""
        units = self.rows if self.groups is None else self.groups
        order = rng.permutation(np.unique(units))
        first = np.isin(units, order[: len(order) // 2])
        return self.rows[first], self.rows[~first]

    def _problem(self, items: NDArray[np.intp], *, fitted: bool) -> Problem:
        rows = None if self.targets.rows is None else self.targets.rows[items]
        problem = replace(self.targets, targets=self.targets.targets[items], rows=rows)
        groups = self.groups[items] if fitted and self.groups is not None else None
        if fitted:
            return problem.folded(groups, SETTINGS)
        return replace(problem, foldings=np.zeros((1, len(items)), np.intp))

    def board(self, items: NDArray[np.intp]) -> Board:
        """Return the scores of every layer on some items."""
        problem = self._problem(items, fitted=self.outputs is None)
        board = Board(links=problem.links, about={"unit": UNITS[problem.kind]})
        for number, layer in enumerate(self.layers):
            if self.outputs is not None:
                if len(outputs := self.outputs[number]):
                    nothing = np.zeros((1, len(items)))
                    fitted = Fitted(outputs=outputs[items][None], swayed=nothing, penalties=nothing)
                    board.add(layer.name, number, layer.shape[1], *problem.evaluated(fitted))
            elif (varies := scaled_or_none(as_layers([layer.rows(items)])[0], shifted=True)) is not None:
                fitted = problem.outputs(varies)
                board.add(layer.name, number, layer.shape[1], *problem.evaluated(fitted))
        return board


def sets(board: Board) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the set of layers by errors over new items, and by those of halves of the items there are."""
    n, psi = len(board.psi[0]), np.stack(board.psi)
    scores = np.array([each.mean() for each in board.by_folding])
    covariance, least = item_covariance(psi, board.links), least_variance(n, board.links)
    freedom = item_units(n, board.links) - 1
    found = [
        state(scores, share * covariance, level=0.95, freedom=freedom, least=share * least)[0] for share in (1.0, HALF)
    ]
    return found[0], found[1]


def isotropy_loss(rows: Array) -> float:
    """Return 1 - mean / standard deviation of the covariance's eigenvalues."""
    values = np.linalg.eigvalsh(np.cov(rows.T, bias=True))
    values = np.maximum(values / len(rows), 1e-6)
    return float(1 - values.mean() / values.std()) if values.std() > 0 else 0.0


def loes(layers: list[Layer], rows: NDArray[np.intp], targets: Array | None) -> int:
    """Return the number of the layer that LOES takes first."""
    losses = []
    for layer in layers:
        x = layer.rows(rows).astype(np.float64)
        loss = isotropy_loss(x)
        if targets is not None:
            centred, y = x - x.mean(axis=0), targets - targets.mean(axis=0)
            weights = np.linalg.solve(centred.T @ centred + 1e-3 * np.eye(x.shape[1]), centred.T @ y)
            loss += float(np.square(y - centred @ weights).mean())
        losses.append(loss)
    return int(np.argmin(losses))


def measured(case: Case, splits: int) -> Iterator[str]:
    """Yield the cells of a row of the table."""
    halves, rng = Halves(case), np.random.default_rng(0)
    boards, chosen, names = [], [], None
    for _ in range(splits):
        pair = halves.halved(rng)
        both = [halves.board(items) for items in pair]
        for items, board in zip(pair, both, strict=True):
            numbers = [each.layer or 0 for each in board.layers]
            names = names or numbers
            assert numbers == names
            layers = [halves.layers[number] for number in numbers]
            rows = items if halves.targets.rows is None else np.unique(halves.targets.rows[items])
            one_hot = None
            if case.kind == "classes":
                one_hot = np.eye(int(halves.targets.targets.max()) + 1)[halves.targets.targets[items]]
            n = len(numbers)
            chosen.append(
                (
                    int(np.argmax([each.mean() for each in board.by_folding])),
                    loes(layers, rows, one_hot) if one_hot is not None else None,
                    loes(layers, rows, None),
                    n - 1,
                    round(2 / 3 * (n - 1)),
                )
            )
        boards += both
    scores = np.array([[each.mean() for each in board.by_folding] for board in boards])
    truth = int(scores.mean(axis=0).argmax())
    found = [sets(board) for board in boards]
    assert names is not None
    yield f"{names[truth]} of {names[-1]}"
    yield f"{scores.mean(axis=0)[truth]:.1f}"
    second = np.sort(scores.mean(axis=0))[-2]
    yield f"{scores.mean(axis=0)[truth] - second:.1f}"
    for place in (0, 1):
        yield f"{100 * np.mean([truth in each[place] for each in found]):.1f}"
    yield f"{np.mean([len(each[0]) for each in found]):.1f}"
    other = np.arange(len(boards)) ^ 1
    for way in range(5):
        layers_chosen = [each[way] for each in chosen]
        if layers_chosen[0] is None:
            yield ""
            continue
        lost = scores[other, truth] - scores[other, layers_chosen]
        yield f"{lost.mean():.2f}"


HEAD = (
    *("model", "task", "best layer", "score", "ahead of the next", "in", "in, halves", "in the set"),
    *("ours", "LOES", "LOES, no labels", "last", "2/3"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, nargs="?")
    parser.add_argument("--splits", type=int, default=100, help="of pairs and queries")
    parser.add_argument("--fitted-splits", type=int, default=20, help="where probes are fitted")
    parser.add_argument("--only", default="", help="part of the name of a file")
    given = parser.parse_args(arguments)
    if given.cases is None:  # to try it
        rng = np.random.default_rng(0)
        targets = np.column_stack([np.arange(40), np.arange(40, 80), rng.random(40)])
        case = Case(embeddings=rng.standard_normal((80, 3, 8)).astype(np.float32), targets=targets, kind="pairs")
        given.cases = Path(tempfile.mkdtemp(prefix="layerprobe-"))
        case.save(given.cases / "none.noise.npz")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for path in sorted(each for each in given.cases.glob("*.npz") if given.only in each.name):
        case = Case.load(path)
        splits = given.splits if case.kind in ("pairs", "queries") else given.fitted_splits
        model, task = path.stem.split(".")
        print(f"| {' | '.join((model, task, *measured(case, splits)))} |", flush=True)


if __name__ == "__main__":
    main()
