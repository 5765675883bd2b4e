"""An encoder as one graph from token ids to the pooled embeddings of every layer; made once and stored on disk.

root/results/graphs/<key>/ has the library's own files and SHA256SUMS. A graph is compared with torch whenever it is
opened.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.encoders.backends.backend import Engine
from layerprobe.encoders.batching import Batch, collate, pool
from layerprobe.encoders.device import LIBRARIES
from layerprobe.encoders.encoder import PROBE_TEXTS, Encoder, float32_attention
from layerprobe.encoders.failures import first_sentence, is_out_of_memory
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.model import Pooling
from layerprobe.errors import ModelError, another_folder, option
from layerprobe.files.atomic import inside, locked, make_directory
from layerprobe.files.folders import SUMS, folder_errors, folder_problems, new_folder
from layerprobe.files.serialisation import digest
from layerprobe.process import silence, while_needed, without_warnings
from layerprobe.rng import without_autocast
from layerprobe.store.store import Store
from layerprobe.versions import GRAPH_VERSION

PLAIN = "eager"
"""transformers' attention written as plain products and a softmax."""
FEATURES = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """An encoder with its pooling, compiled by a library other than torch."""

    backend: str
    """Name of the engine."""
    run: Callable[[Batch], NDArray[np.float32]]
    """Function from a padded batch to (layer, text, feature) float32."""


Tokens = Literal["tokens"]
TOKENS: Tokens = "tokens"
"""Replaces a pooling: none."""


class PooledLayers(nn.Module):
    """An encoder in float32 with its pooling; it outputs one embedding per text and layer.

    With `TOKENS` instead of a pooling it outputs the token states of the last layer only.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling | Tokens) -> None:
        super().__init__()
        self.model = encoder.model
        self.encoder = encoder
        self.pooling = pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return (layer, text, feature), or (text, token, feature), float32 for padded (text, token) ids."""
        values = (input_ids, attention_mask, token_type_ids)
        batch = {name: value for name, value in zip(FEATURES, values, strict=True) if value is not None}
        if self.pooling == TOKENS:
            return list(self.encoder.layer_states(batch))[-1]
        return torch.stack([pool(states, attention_mask, self.pooling) for states in self.encoder.layer_states(batch)])


@without_autocast()
def exported(encoder: Encoder, pooling: Pooling | Tokens, *, plain: bool = False) -> torch.export.ExportedProgram:
    """Return an encoder and its pooling as a torch graph, for any number of texts and tokens.

    Plain: with attention as plain products and a softmax, instead of the encoder's own.
    """
    batch = probes(encoder)[0]
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), quiet_export(), float32_attention(encoder.model, plain=plain):
        return torch.export.export(
            PooledLayers(encoder, pooling).train(False),
            (),
            kwargs=batch,
            dynamic_shapes=dict.fromkeys(batch, any_size),
            strict=False,  # the hooks that capture layers run unchanged
        )


def probes(encoder: Encoder, *, max_length: int | None = None) -> list[Batch]:
    """Return batches for comparing a graph with torch: padded ones, single texts, a long one, a single token.

    The first has three texts, or one length, but several texts and tokens: graphs are traced on it.
    """
    tokens = encoder.tokenize([*PROBE_TEXTS, " ".join(PROBE_TEXTS * 64)], max_length=max_length)
    n_texts = len(PROBE_TEXTS)
    together = [list(range(n_texts))] if encoder.padding_invariant else [[1, 1, 1]]
    batches = [collate(tokens, rows, "cpu") for rows in (*together, *([row] for row in range(n_texts + 1)))]
    return [*batches, {name: values[:, :1] for name, values in batches[1].items()}]


@without_autocast()
@torch.inference_mode()
def differences(
    graph: Graph, encoder: Encoder, pooling: Pooling, *, max_length: int | None = None
) -> tuple[float, ...]:
    """Return the difference of a graph from torch at every layer, as a share of the layer's largest feature."""
    worst = np.zeros(encoder.n_layers)
    for batch in probes(encoder, max_length=max_length):
        expected = PooledLayers(encoder, pooling)(**batch).numpy()
        layers = graph.run(batch)
        if layers.shape != expected.shape:
            return (np.inf,) * encoder.n_layers
        error = np.abs(layers - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
        worst = np.maximum(worst, error)  # NaN stays
    return tuple(worst.tolist())


@while_needed
@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Silence what exporters print, log and warn; the graph is compared afterwards."""
    before, nothing = logging.root.manager.disable, logging.NullHandler()
    if not logging.root.handlers:
        logging.root.addHandler(nothing)  # openvino logs to the root logger, which would keep a handler for ever
    try:
        logging.disable(max(before, logging.WARNING))
        with without_warnings(), silence():
            yield
    finally:
        logging.disable(before)
        logging.root.removeHandler(nothing)


logger = logging.getLogger(__name__)

TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
"""Largest difference from torch in float32, as a share of a layer's largest feature."""

_OPENING = threading.RLock()
"""Lock: torch.export, and silencing it, are not thread-safe."""
Opened = tuple[Graph, tuple[float, ...]]
"""A graph, and its difference from torch at every layer."""


def open_graph(engine: Engine, encoder: Encoder, model: Resolved) -> Opened:
    """Return the graph of an encoder from the store; make it first if it is missing.

    Waits for other processes that make the same graph, and for other threads that open any graph; replaces a damaged
    graph.
    """
    root = Store(model.asked.cache_dir).root
    folder = _folder(engine, encoder, model, root)
    with _OPENING, locked(root, root / "locks" / f"{folder.name}.lock", wait=True):
        problems = list(folder_problems(folder))
        for problem in problems:
            logger.warning("%s: rebuilding the graph", problem)
        if problems or not (folder / SUMS).is_file():
            _make(engine, encoder, model, folder)
        return _compiled(engine, encoder, model, folder)


def _folder(engine: Engine, encoder: Encoder, model: Resolved, root: Path) -> Path:
    """Return the folder of an encoder's graph, named by everything that the graph depends on.

    One graph serves float32 and bfloat16, all tokenizers with the same features, and all processors.
    """
    key = digest(
        {
            **{name: value for name, value in model.store_identity.items() if name != "tokenizer"},
            "features": sorted(probes(encoder)[0]),
            "pooling": model.pooling,
            "norm": encoder.description.norm,
            "attn": model.asked.attn,
            "backend": engine.name,
            "version": GRAPH_VERSION,
            **LIBRARIES,
            **engine.versions(),
        }
    )
    return inside(root, root / "results" / "graphs" / key)


def _make(engine: Engine, encoder: Encoder, model: Resolved, folder: Path) -> None:
    """Make a graph with the encoder's own attention, or else with plain attention; keep the first that matches torch.

    OpenVINO's fused attention returns NaN where a token can attend to nothing, such as padding next to windows.
    """
    make_directory(folder.parent)
    for plain in (False, True) if encoder.model.config._attn_implementation != PLAIN else (True,):
        try:
            with folder_errors(folder, advice=another_folder()), new_folder(folder, replace=True) as new:
                logger.info("converting %s to %s", encoder.description.name, engine.name)
                with _one_line(engine, encoder, "be converted to"):
                    engine.write(exported(encoder, model.pooling, plain=plain), new)
                _compiled(engine, encoder, model, new)
            return
        except ModelError as error:
            if plain:
                raise
            logger.info("%s; trying plain attention", error)


def _compiled(engine: Engine, encoder: Encoder, model: Resolved, folder: Path) -> Opened:
    """Compile the graph of a folder, and compare it with torch."""
    dtype, name = model.dtype, encoder.description.name
    with _one_line(engine, encoder, "be run by"):
        graph = engine.compile(folder, dtype)
        errors = differences(graph, encoder, model.pooling, max_length=model.max_length)
    wrong = [layer for layer, difference in enumerate(errors) if not difference <= TOLERANCES[dtype]]  # NaN is wrong
    if wrong:
        raise ModelError(
            f"{engine.name} does not match torch for {name}: layer {wrong[0]} differs by "
            f"{errors[wrong[0]]:.1e} of its largest feature, expected at most {TOLERANCES[dtype]:.0e}; "
            f"use {option('backend', 'torch')}"
        )
    return graph, errors


@contextlib.contextmanager
def _one_line(engine: Engine, encoder: Encoder, doing: str) -> Iterator[None]:
    """Turn a library's error into one line; failed writes and exhausted memory pass unchanged."""
    try:
        yield
    except Exception as error:  # exporters raise all kinds of errors
        if isinstance(error, OSError) or is_out_of_memory(error):
            raise
        first: BaseException = error
        while first.__cause__ is not None:  # the original error is hidden behind advice
            first = first.__cause__
        raise ModelError(
            f"{encoder.description.name} cannot {doing} {engine.name}: {first_sentence(first)}; use "
            f"{option('backend', 'torch')}"
        ) from error
