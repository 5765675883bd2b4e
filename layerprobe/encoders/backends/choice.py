"""Which backend computes a model's embeddings: the one requested, or the fastest that equals torch."""

import contextlib
import itertools
import logging
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from layerprobe.encoders.backends.backend import AUTO, BACKENDS, TORCH
from layerprobe.encoders.backends.graph import Graph, PooledLayers, open_graph
from layerprobe.encoders.batching import CPU_BATCH_TOKENS, collate, token_batches
from layerprobe.encoders.device import LIBRARIES
from layerprobe.encoders.encoder import PROBE_TEXTS, Encoder
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.timing import Speedup, speedup, timed
from layerprobe.errors import ModelError, option
from layerprobe.files.serialisation import digest
from layerprobe.names import counted
from layerprobe.results.table import Column, Table
from layerprobe.store.store import Store
from layerprobe.versions import GRAPH_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFinding:
    """What one backend does for a model, or why it cannot be taken."""

    backend: str
    """torch, or as in `BACKENDS`."""
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

    @property
    def usable(self) -> tuple[BackendFinding, ...]:
        """The backends that can be used, fastest first."""
        can = [finding for finding in self.findings if finding.problem is None]
        return tuple(sorted(can, key=lambda finding: -(finding.tokens_per_second or 0)))

    @property
    def _fastest(self) -> tuple[Speedup, str] | None:
        """The fastest other than torch, and before it one whose speedup interval is above 1; None without another."""
        measured = [(finding.speedup, finding.backend) for finding in self.usable if finding.speedup]
        return max(measured, key=lambda pair: (pair[0][1] > 1, pair), default=None)

    @property
    def chosen(self) -> str:
        """The backend that `auto` uses: the fastest whose speedup interval is above 1, else torch."""
        return self._fastest[1] if self._fastest is not None and self._fastest[0][1] > 1 else TORCH

    @property
    def reason(self) -> str:
        """Why it is chosen: how much faster than torch it is, or that the fastest other is not faster."""
        if self._fastest is None:
            return "no other can be taken"
        (times, low, high), name = self._fastest
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
            notes=(f"{option('backend', 'auto')} takes {self.chosen}: {self.reason}",),
        )


logger = logging.getLogger(__name__)

USUAL_TEXTS = tuple(" ".join(PROBE_TEXTS[i:j]) for i, j in itertools.combinations(range(len(PROBE_TEXTS) + 1), 2))
"""What speeds are measured on where no texts are given: sentences of unlike lengths."""
MEASURED_TEXTS, MEASURED_TOKENS = 256, CPU_BATCH_TOKENS
ROUNDS, SECONDS = (7, 15), 10.0
"""Of the measurement: the least number of rounds, and the most, which ends once it has taken this long."""


def graph_of(encoder: Encoder, model: Resolved) -> Graph | None:
    """Return what computes an encoder's embeddings by the backend of its options; None: torch.

    With auto, a library that is not there, or does not equal torch for the model, is passed over.
    """
    name = model.asked.backend
    if name == AUTO:
        name = TORCH if encoder.modality == "image" else _kept_choice(encoder, model)
    if name == TORCH:
        return None
    engine = BACKENDS[name]
    if encoder.modality == "image":
        raise ModelError(f"expected the backend {TORCH} for images, got {name}")
    engine.check(encoder.device.type, model.dtype)
    return open_graph(engine, encoder, model)[0]


def survey(encoder: Encoder, model: Resolved, texts: Sequence[str] = USUAL_TEXTS) -> BackendSurvey:
    """Check every backend on a model here: whether it equals torch at every layer, and how fast it is.

    Speeds are measured on texts, with the threads that torch has. It is kept: `auto` takes what the latest one chose.
    """
    graphs: dict[str, Graph] = {}
    differences: dict[str, tuple[float, ...]] = {}
    problems: dict[str, str] = {}
    for name, engine in BACKENDS.usable().items():
        try:
            engine.check(encoder.device.type, model.dtype)
            graphs[name], differences[name] = open_graph(engine, encoder, model)
        except ModelError as error:
            problems[name] = str(error)
    lengths, seconds = timed_rounds(encoder, graphs, model, texts) if graphs else ([], {})
    result = BackendSurvey(
        findings=tuple(
            BackendFinding(
                backend=name,
                problem=problems.get(name),
                differences=differences.get(name),
                tokens_per_second=sum(lengths) / statistics.median(seconds[name]) if name in seconds else None,
                speedup=speedup(seconds[TORCH], seconds[name]) if name in graphs else None,
            )
            for name in (TORCH, *BACKENDS)
        ),
        threads=torch.get_num_threads(),
    )
    if (key := _key(encoder, model)) is not None:
        Store(model.asked.cache_dir).save_result("backends", key, result)
    return result


def _key(encoder: Encoder, model: Resolved) -> str | None:
    """Return the key of a stored survey: model, settings, machine and packages; None if nothing is installed."""
    installed: dict[str, str] = {}
    for engine in BACKENDS.usable().values():
        with contextlib.suppress(ModelError):
            engine.check(encoder.device.type, model.dtype)
            installed |= engine.versions()
    if not installed:
        return None
    return digest(
        {
            **model.store_identity,
            "options": [model.pooling, model.asked.attn, encoder.description.norm, model.dtype],
            "machine": [platform.node(), platform.machine(), torch.get_num_threads()],
            "version": GRAPH_VERSION,
            "measured": [MEASURED_TEXTS, MEASURED_TOKENS, *ROUNDS],
            **LIBRARIES,
            **installed,
        }
    )


def _kept_choice(encoder: Encoder, model: Resolved) -> str:
    """Return the backend that the latest survey chose; where there was none, one is made."""
    if (key := _key(encoder, model)) is None:
        return TORCH
    latest = Store(model.asked.cache_dir).load_result("backends", key, BackendSurvey)
    if latest is None:
        latest = survey(encoder, model)
        logger.info("embeddings of %s by %s: %s", encoder.description.name, latest.chosen, latest.reason)
    return latest.chosen


@torch.inference_mode()
def timed_rounds(
    encoder: Encoder, graphs: dict[str, Graph], model: Resolved, texts: Sequence[str]
) -> tuple[Sequence[int], dict[str, list[float]]]:
    """Return tokens by text, and seconds of torch and each graph for all, by round; in batches as of an extraction.

    Every second round is in reverse. On one thread seconds are the process's own, whatever else runs on the machine.
    """
    drawn = np.random.default_rng(0).integers(len(texts), size=MEASURED_TEXTS)
    tokens = encoder.tokenize([texts[int(row)] for row in drawn], max_length=model.max_length)
    lengths = tokens.lengths[: 1 + int(np.searchsorted(np.cumsum(tokens.lengths), MEASURED_TOKENS))]
    budget, alike = model.asked.batch_tokens or CPU_BATCH_TOKENS, not encoder.padding_invariant
    batches = [collate(tokens, rows) for rows in token_batches(lengths, budget=budget, same_length=alike)]
    layers = PooledLayers(encoder, model.pooling)

    def by_torch() -> None:
        with encoder.precision():
            for batch in batches:
                layers(**batch)

    runs = {name: lambda graph=graph: [graph.run(batch) for batch in batches] for name, graph in graphs.items()}
    ways: dict[str, Callable[[], object]] = {TORCH: by_torch, **runs}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    return lengths, timed(ways, rounds=ROUNDS[0], most=ROUNDS[1], max_seconds=SECONDS, clock=clock)
