"""CKA of all pairs of layers from tiles, against the fastest public ways and the best known one.

In one process, on the same float32 features of 13 + 13 layers of 2758 x 768:

    ours           `estimate_cka` without intervals
    ours, SE       the same with standard errors, intervals and bands
    pytorch-cka    `cka_from_features`: all Gram matrices at once; linear, debiased
    torch_cka      `CKA.compare` with all samples in one batch, on a few pairs; linear, debiased
    one by one     RBF as in the notebook of Kornblith et al. 2019: two Gram matrices a pair, centred whole

Prints the median of the times, the ratios, the peak of resident memory above the features, how far values are from
float64, and which share of our time the needed products take at the machine's own rate, measured in every round.
Every round runs all ways, every second one in reverse. `--sizes` prints how our time grows with the number of samples;
`--million` a million samples on the feature path, on rows that are made when they are read; `--deep` a 49 x 49 map with
intervals of 10,000 x 4,096. Memory is that of the process: run `--deep` and `--million` in one of their own, with
`--no-peers`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from machine import clock, describe
from numpy.typing import NDArray

from layerprobe.similarity.cka import estimate_cka, linear_cka
from layerprobe.similarity.grams import inner_products
from layerprobe.similarity.measures import CKA

LINEAR, RBF = CKA(), CKA(kernel="rbf", bandwidth_multiplier=1.0)
SHOWN_PAIRS = 2  # of torch_cka, a side
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")

Layers = list[NDArray[np.float32]]


def layers_of(n: int, d: int, n_layers: int, *, seed: int) -> Layers:
    """Return layers that share a part of their variance."""
    shared = np.random.default_rng(0).standard_normal((n, 64), dtype=np.float32)
    rng = np.random.default_rng(seed)
    noise = np.linspace(4, 8, n_layers, dtype=np.float32)
    return [
        shared @ rng.standard_normal((64, d), dtype=np.float32) + level * rng.standard_normal((n, d), dtype=np.float32)
        for level in noise
    ]


def ours(a: Sequence[object], b: Sequence[object], measure: CKA, *, level: float | None) -> NDArray[np.float64]:
    """Return the map; with a level also everything that is uncertain about it."""
    (estimate,) = estimate_cka([("a", a), ("b", b)], measures=[measure], level=level)
    if level is not None:
        partners = estimate.curve("same-index").reference_layers
        estimate.differences(estimate, list(itertools.pairwise(enumerate(partners))))
        assert estimate.map.uncertainty is not None
    return np.array(estimate.map.values)


def pytorch_cka(a: Layers, b: Layers) -> NDArray[np.float64]:
    """Return the map by the package pytorch-cka."""
    from cka import cka_from_features

    values = cka_from_features([torch.from_numpy(x) for x in a], [torch.from_numpy(x) for x in b])
    return values.double().numpy()


def torch_cka(a: Layers, b: Layers) -> NDArray[np.float64]:
    """Return the map by the package torch_cka, from models that give their layers out of a table."""
    from torch_cka import CKA

    class Table(torch.nn.Module):
        def __init__(self, layers: Layers) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Stored(layer) for layer in layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class Stored(torch.nn.Module):
        def __init__(self, values: NDArray[np.float32]) -> None:
            super().__init__()
            self.values = torch.from_numpy(values)

        def forward(self, _: torch.Tensor) -> torch.Tensor:
            return self.values

    names = [f"layers.{i}" for i in range(len(a))]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        compared = CKA(Table(a), Table(b), model1_layers=names, model2_layers=names[: len(b)])
        rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(1, 1)))
        compared.compare(rows)
    values: NDArray[np.float64] = compared.export()["CKA"].double().numpy()
    return values


def one_by_one(a: Layers, b: Layers) -> NDArray[np.float64]:
    """Return biased RBF CKA with whole Gram matrices, two a pair."""

    def gram(x: NDArray[np.float32]) -> NDArray[np.float32]:
        products = x @ x.T
        norms = np.diag(products)
        distances = -2 * products + norms[:, None] + norms
        return np.exp(-distances / (2 * np.median(distances)))

    def centred(gram: NDArray[np.float32]) -> NDArray[np.float32]:
        means = gram.mean(axis=0)
        means -= means.mean() / 2
        return gram - means[:, None] - means

    def cka(x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
        k, l = centred(gram(x)), centred(gram(y))  # noqa: E741
        inner = k.ravel() @ l.ravel()
        return float(inner / (np.linalg.norm(k) * np.linalg.norm(l)))

    return np.array([[cka(x, y) for y in b] for x in a])


def product_rate(d: int, now: Callable[[], float], *, size: int = 512, products: int = 100) -> float:
    """Return the multiplications and additions a second of the machine's own float32 product."""
    a, b = torch.randn(size, d), torch.randn(size, d)
    inner_products(a, b)
    start = now()
    for _ in range(products):
        inner_products(a, b)
    return 2 * products * size * size * d / (now() - start)


def measured(way: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> tuple[float, float | None]:
    """Return seconds, and the peak of resident memory above what was there before, in MB, where Linux tells it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier calls freed counts for them
    before = _resident("VmRSS")
    with contextlib.suppress(OSError):
        RESET.write_text("5")
    start = now()
    way()
    elapsed = now() - start
    peak = _resident("VmHWM")
    return elapsed, None if before is None or peak is None else (peak - before) / 1024


def _resident(field: str) -> int | None:
    if not STATUS.exists() or not os.access(RESET, os.W_OK):
        return None
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


class Rows:
    """A layer whose rows are made when they are read, the same ones every time."""

    def __init__(self, n: int, d: int, seed: int) -> None:
        self.shape, self.dtype = (n, d), np.dtype(np.float32)
        self._base = np.random.default_rng(seed).standard_normal((4096 + 1, d), dtype=np.float32)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        chosen = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else rows
        return self._base[chosen % 4096] * (1 + (chosen // 4096)[:, None].astype(np.float32) / 512) + self._base[4096]


def compare(arguments: argparse.Namespace) -> None:
    """Print times, ratios, memory and errors of all ways."""
    n, d, n_layers = arguments.samples, arguments.features, arguments.layers
    a, b = layers_of(n, d, n_layers, seed=1), layers_of(n, d, n_layers, seed=2)
    errors = check(a, b, peers=not arguments.no_peers)  # loads the peers before the clock starts
    few = min(SHOWN_PAIRS, n_layers)
    ways: dict[str, Callable[[], object]] = {
        "linear  ours": lambda: ours(a, b, LINEAR, level=None),
        "linear  ours, SE": lambda: ours(a, b, LINEAR, level=0.95),
        **({"linear  pytorch-cka": lambda: pytorch_cka(a, b)} if "pytorch-cka" in errors else {}),
        **({"linear  torch_cka": lambda: torch_cka(a[:few], b[:few])} if "torch_cka" in errors else {}),
        "rbf     ours": lambda: ours(a, b, RBF, level=None),
        "rbf     ours, SE": lambda: ours(a, b, RBF, level=0.95),
        **({} if arguments.no_peers else {"rbf     one by one": lambda: one_by_one(a, b)}),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, float] = {}
    now, rates = clock(arguments.threads), list[float]()
    for number in range(arguments.rounds):
        rates.append(product_rate(d, now))
        for name in list(ways)[:: -1 if number % 2 else 1]:
            elapsed, peak = measured(ways[name], now)
            times[name].append(elapsed)
            peaks[name] = max(peak or 0.0, peaks.get(name, 0.0))
    pairs = {**dict.fromkeys(ways, n_layers**2), "linear  torch_cka": few**2}
    print(f"{n_layers} x {n_layers} layers of {n} x {d}, float32; {describe(arguments.threads)}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        scaled = f"  x {n_layers**2}/{pairs[name]} pairs" if pairs[name] < n_layers**2 else ""
        print(f"{name:20} {median:7.2f} s ({min(seconds):.2f} to {max(seconds):.2f}) {peaks[name]:7.0f} MB{scaled}")
    median = {name: statistics.median(seconds) / pairs[name] for name, seconds in times.items()}
    for kernel, peers in (("linear", ("pytorch-cka", "torch_cka")), ("rbf   ", ("one by one",))):
        for peer in peers:
            name = f"{kernel}  {peer}"
            if name not in median:
                continue
            ratio, with_errors = (median[name] / median[f"{kernel}  ours{more}"] for more in ("", ", SE"))
            memory = peaks[f"{kernel}  ours"] / peaks[name] if peaks[name] else float("nan")
            print(f"{name:20} takes {ratio:6.1f} x our time, {with_errors:6.1f} x with SE; memory {memory:.2f} of its")
    needed = 2 * n_layers * n * n * d  # half of the products of every layer with itself, two operations each
    least = needed / statistics.median(rates) / n_layers**2
    shares = [f"{100 * least / median[f'linear  ours{more}']:.0f} %" for more in ("", ", SE")]
    print(
        f"linear: the needed products are {shares[0]} of our time, {shares[1]} with SE, at the machine's rate of a tile"
    )
    print("largest distance from float64 on the first pairs: " + ", ".join(f"{k} {v:.1e}" for k, v in errors.items()))


def check(a: Layers, b: Layers, *, peers: bool) -> dict[str, float]:
    """Return how far our way is from float64, and how far each peer's."""
    x, y = ([layer.astype(np.float64) for layer in layers[:2]] for layers in (a, b))
    linear = np.array([[linear_cka(i, j) for j in y] for i in x])
    rbf = ours(x, y, RBF, level=None)
    errors = {
        "linear ours": float(np.abs(ours(a[:2], b[:2], LINEAR, level=None) - linear).max()),
        "rbf ours": float(np.abs(ours(a[:2], b[:2], RBF, level=None) - rbf).max()),
    }
    for name, way in {"pytorch-cka": pytorch_cka, "torch_cka": torch_cka}.items() if peers else ():
        try:
            errors[name] = float(np.abs(way(a[:2], b[:2]) - linear).max())
        except ImportError as error:
            print(f"left out: {name}: {error}")
    assert max(errors.values()) < 1e-3, f"values differ: {errors}"
    return errors


def growth(arguments: argparse.Namespace) -> None:
    """Print our time by the number of samples."""
    for n in arguments.sizes:
        layers: list[object] = [Rows(n, arguments.features, seed) for seed in range(2 * arguments.layers)]
        a, b = layers[: arguments.layers], layers[arguments.layers :]
        cells = []
        for measure, level in ((LINEAR, None), (LINEAR, 0.95), (RBF, None))[: 3 if n <= arguments.rbf_up_to else 2]:
            elapsed, peak = measured(partial(ours, a, b, measure, level=level))
            cells.append(f"{measure.kernel}{' with SE' if level else ''} {elapsed:.1f} s {peak or 0:.0f} MB")
        print(f"n = {n:6}: {', '.join(cells)}", flush=True)


def million(arguments: argparse.Namespace) -> None:
    """Print time and memory of two layers of a million samples."""
    a, b = Rows(1_000_000, arguments.features, 0), Rows(1_000_000, arguments.features, 1)
    for level in (None, 0.95):
        elapsed, peak = measured(partial(ours, [a], [b], LINEAR, level=level))
        print(
            f"a million samples, one pair{', with SE' if level else ''}: {elapsed:.0f} s, {peak or 0:.0f} MB",
            flush=True,
        )


def deep(arguments: argparse.Namespace) -> None:
    """Print time and memory of a map of two deep models with intervals."""
    n, d, n_layers = arguments.deep
    # Each layer is a part of one table that begins a row later than the one before: no two share a row.
    table = np.random.default_rng(0).standard_normal((n + 2 * n_layers, d), dtype=np.float32)
    layers = [table[i : i + n] for i in range(2 * n_layers)]
    elapsed, peak = measured(partial(ours, layers[:n_layers], layers[n_layers:], LINEAR, level=0.95))
    parts, features = n_layers**2 * n * 4 / 2**20, 2 * n_layers * n * d * 4 / 2**20
    print(
        f"{n_layers} x {n_layers} layers of {n} x {d}, with SE: {elapsed:.0f} s, {peak or 0:.0f} MB, of which "
        f"{parts:.0f} are what every text adds to every pair; the features would take {features:.0f}",
        flush=True,
    )


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2758)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[], help="also measure how time grows with samples")
    parser.add_argument("--rbf-up-to", type=int, default=8192, help="sizes at which rbf is measured, too")
    parser.add_argument("--million", action="store_true", help="also run a million samples")
    parser.add_argument(
        "--deep",
        type=int,
        nargs="*",
        metavar="SIZE",
        help="also the memory of a map of deep models: samples, features and layers, 10000 4096 49 by default",
    )
    parser.add_argument("--no-peers", action="store_true", help="no peers; with another part, that part alone")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    others = arguments.sizes or arguments.deep is not None or arguments.million
    if not (arguments.no_peers and others):
        compare(arguments)
    growth(arguments)
    if arguments.deep is not None:
        arguments.deep = arguments.deep or [10_000, 4096, 49]
        deep(arguments)
    if arguments.million:
        million(arguments)


if __name__ == "__main__":
    main()
