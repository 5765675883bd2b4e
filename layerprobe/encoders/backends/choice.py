"""Which backend computes the embeddings of a model: the one requested, or the fastest that equals torch."""

import contextlib
import logging
import platform
import time

import torch
import transformers

from layerprobe.encoders.backends.backend import AUTO, BACKENDS, TORCH, Engine, engines
from layerprobe.encoders.backends.graph import Graph, PooledLayers, probes
from layerprobe.encoders.backends.kept import open_graph
from layerprobe.encoders.backends.values import BackendFinding, BackendSurvey
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.model import Settled
from layerprobe.encoders.options import dtype_name
from layerprobe.errors import ModelError
from layerprobe.files.serialisation import digest
from layerprobe.store.store import Store
from layerprobe.versions import GRAPH_VERSION, __version__

logger = logging.getLogger(__name__)

MEASURED_TOKENS = 512
"""Of the batch that a speed is measured on."""
ROUNDS = 3


def graph_of(encoder: Encoder, checkpoint: Checkpoint, options: Settled) -> Graph | None:
    """Return what computes an encoder's embeddings by `options.backend`; None: torch.

    With auto, a library that is not there, or does not equal torch for the model, is passed over.

    Raises:
        ModelError: If the backend that is requested is not installed, is for another device or precision, or does not
            equal torch for the model.
        StoreError: If the graph cannot be written.
    """
    name = options.backend
    if name == AUTO:
        name = TORCH if encoder.modality == "image" else _kept_choice(encoder, checkpoint, options)
    engine = BACKENDS[name]
    if not isinstance(engine, Engine):
        return None
    if encoder.modality == "image":
        raise ModelError(f"expected the backend {TORCH} for images, got {name}")
    engine.check(encoder.device.type, dtype_name(options))
    return open_graph(engine, encoder, checkpoint, options)[0]


def survey(encoder: Encoder, checkpoint: Checkpoint, options: Settled) -> BackendSurvey:
    """Return what every backend does for a model here: whether it equals torch at every layer, and how fast it is.

    Raises:
        StoreError: If a graph cannot be written.
    """
    graphs: dict[str, Graph] = {}
    found: dict[str, tuple[float, ...]] = {}
    problems: dict[str, str] = {}
    for name, engine in engines().items():
        try:
            engine.check(encoder.device.type, dtype_name(options))
            graphs[name], found[name] = open_graph(engine, encoder, checkpoint, options)
        except ModelError as error:
            problems[name] = str(error)
    speeds = _speeds(encoder, graphs, options) if graphs else {}
    return BackendSurvey(
        findings=tuple(
            BackendFinding(
                backend=name,
                problem=problems.get(name),
                differences=found.get(name),
                tokens_per_second=speeds.get(name),
            )
            for name in BACKENDS
        )
    )


def _kept_choice(encoder: Encoder, checkpoint: Checkpoint, options: Settled) -> str:
    """Return the backend that a survey chose, which is kept by model, settings, machine and what is installed."""
    installed: dict[str, str] = {}
    for engine in engines().values():
        with contextlib.suppress(ModelError):
            engine.check(encoder.device.type, dtype_name(options))
            installed |= engine.versions()
    if not installed:
        return TORCH
    key = digest(
        {
            "model": "" if checkpoint.revision.startswith("sha256:") else checkpoint.source,
            **checkpoint.identity,
            "options": [options.pooling, options.attn, encoder.description.norm, dtype_name(options)],
            "machine": [platform.node(), platform.machine(), torch.get_num_threads()],
            "version": GRAPH_VERSION,
            "layerprobe": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **installed,
        }
    )
    store = Store(options.cache_dir)
    kept = store.load_result("backends", key, BackendSurvey)
    if kept is None:
        kept = survey(encoder, checkpoint, options)
        store.save_result("backends", key, kept)
        logger.info("embeddings of %s by %s: %s", encoder.description.name, kept.chosen, kept.reason)
    return kept.chosen


@torch.inference_mode()
def _speeds(encoder: Encoder, graphs: dict[str, Graph], options: Settled) -> dict[str, float]:
    """Return tokens a second of torch and of graphs, measured in turns; the fastest round counts."""
    batch = probes(encoder)[0]
    n_copies = max(1, MEASURED_TOKENS // batch["input_ids"].numel())
    batch = {name: values.repeat(n_copies, 1) for name, values in batch.items()}
    layers = PooledLayers(encoder, options.pooling)

    def torch_layers() -> None:
        with encoder.precision():
            layers(**batch)

    ways = {TORCH: torch_layers} | {name: lambda graph=graph: graph.run(batch) for name, graph in graphs.items()}
    best = dict.fromkeys(ways, float("inf"))
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:  # the first round is for warming up
                best[name] = min(best[name], time.perf_counter() - start)
    return {name: batch["input_ids"].numel() / seconds for name, seconds in best.items()}
