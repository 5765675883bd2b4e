"""The pooled embeddings of every layer, all texts through one block before the next one is read.

Knows a model of which one block at a time is in memory; states and embeddings are on disk meanwhile.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report
from layerprobe.encoders.batching import Batch, Prepared, collate, copies, token_batches
from layerprobe.encoders.blockwise import BlockByBlock
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.pooling import pool
from layerprobe.encoders.values import Pooling
from layerprobe.extraction.embed import budget_of, check_finite
from layerprobe.files.atomic import make_directory, reserve, store_errors
from layerprobe.names import short_name

BYTES = 4
"""Of a number on disk, whatever the precision of the forward pass."""


def batches_of(encoder: Encoder, texts: Prepared, *, batch_tokens: int | None = None) -> list[list[int]]:
    """Return the rows of every batch, the same for all blocks."""
    budget = budget_of(encoder, batch_tokens)
    return list(token_batches(texts.lengths, budget=budget, same_length=not encoder.padding_invariant))


def bytes_meanwhile(encoder: Encoder, texts: Prepared, batches: Sequence[Sequence[int]]) -> int:
    """Return the bytes on disk until all is embedded: the states of all batches, padding included, and embeddings."""
    width, n_before, lengths = encoder.description.hidden_size, encoder.stack.n_before, texts.lengths
    n_positions = sum(len(rows) * (n_before + max(lengths[row] for row in rows)) for rows in batches)
    return BYTES * width * (n_positions + encoder.n_layers * len(texts))


@contextlib.contextmanager
def embedded_block_by_block(
    blocks: BlockByBlock, texts: Prepared, batches: Sequence[Sequence[int]], *, pooling: Pooling = "mean", folder: Path
) -> Iterator[NDArray[np.float32]]:
    """Have the pooled embedding of every text at every layer, (layer, text, feature) float32, on disk for a while.

    What is in the folder is in files without a name, which are gone when the process ends, however it does.
    """
    encoder = blocks.encoder
    encoder.check_pooling(pooling)
    shape = encoder.n_layers, len(texts), encoder.description.hidden_size
    make_directory(folder)
    task, done, total = f"embedding with {short_name(encoder.description.name)}", 0, encoder.n_layers * len(texts)
    with (
        store_errors("write states to", folder),
        tempfile.TemporaryFile(dir=folder) as file,
        tempfile.TemporaryFile(dir=folder) as pooled,
    ):
        reserve(pooled, BYTES * math.prod(shape))
        layers = np.memmap(pooled, dtype=np.float32, mode="w+", shape=shape)
        states, (again, first) = _States(file), copies(texts)
        for layer in range(encoder.n_layers):
            with blocks.at_work(layer):
                for number, rows in enumerate(batches):
                    before = states.read(number, encoder.device) if layer else None
                    after, embeddings = _layer(blocks, layer, collate(texts, rows, encoder.device), before, pooling)
                    if after is not None:
                        states.write(number, after)
                    layers[layer, rows] = embeddings.cpu().numpy()
                    done += len(rows)
                    report(task, done, total)
            layers[layer, again] = layers[layer, first]
            check_finite(encoder, layer, layers[layer])
        yield layers


@torch.inference_mode()
def _layer(
    blocks: BlockByBlock, layer: int, batch: Batch, state: Tensor | None, pooling: Pooling
) -> tuple[Tensor | None, Tensor]:
    with blocks.encoder.precision():
        following, states = blocks.layer(layer, batch, state)
        return following, pool(states, batch["attention_mask"], pooling)


class _States:
    """What goes into a block, batch by batch in a file; what comes out of it takes its place."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: list[tuple[int, torch.Size, torch.dtype]] = []

    def write(self, number: int, state: Tensor) -> None:
        """Put the state of a batch into its place, behind the others where it is the first time."""
        if number == len(self._places):
            self._places.append((self._file.seek(0, 2), state.shape, state.dtype))
        self._file.seek(self._places[number][0])
        self._file.write(state.to("cpu", torch.float32).contiguous().numpy().data)

    def read(self, number: int, device: torch.device) -> Tensor:
        """Return the state of a batch as it was given."""
        place, shape, dtype = self._places[number]
        values = np.empty(tuple(shape), dtype=np.float32)
        self._file.seek(place)
        self._file.readinto(values.data)  # type: ignore[attr-defined]
        return torch.from_numpy(values).to(device, dtype)
