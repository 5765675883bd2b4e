"""The token states of every layer of an encoder, batch by batch, or of chosen tokens in a file that goes away.

Knows a loaded encoder and token ids; no tasks. All states of all texts are never in memory at a time.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report
from layerprobe.encoders.batching import Batch, TokenizedTexts, collate, token_batches
from layerprobe.encoders.encoder import Encoder
from layerprobe.errors import DegenerateLayerError, StoreError
from layerprobe.extraction.embed import budget_of, dtype_and_advice, in_halves
from layerprobe.files.atomic import reserve
from layerprobe.names import short_name


def token_states(
    encoder: Encoder, texts: TokenizedTexts, *, rows: Sequence[int] | None = None, batch_tokens: int | None = None
) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """Yield the token states of texts at every layer, a batch at a time, longest texts first.

    Args:
        encoder: A loaded encoder.
        texts: What its tokenizer made of the texts.
        rows: Numbers of the texts that are wanted; all by default.
        batch_tokens: Tokens a batch, padding included; as for `embed_layers` by default.

    Yields:
        The numbers of the texts of a batch, and (layer, text, token, feature) float32: each text begins with its own
        tokens, whichever side is padded; what comes behind them means nothing.
    """
    places = list(range(len(texts))) if rows is None else list(rows)
    lengths = [texts.length(row) for row in places]
    budget = budget_of(encoder, batch_tokens)

    def layers(batch: Batch) -> Tensor:
        with encoder.precision():
            states = torch.stack([layer.float() for layer in encoder.layer_states(batch)])
        if texts.padding_side == "left":
            shifts = (batch["attention_mask"].sum(dim=1) - states.shape[2]).tolist()
            states = torch.stack([states[:, i].roll(shift, 1) for i, shift in enumerate(shifts)], dim=1)
        # a state at padding may be infinite
        inside = torch.arange(states.shape[2], device=states.device) < batch["attention_mask"].sum(dim=1)[:, None]
        # where a batch is halved, the states of both halves would be too large for the device, too
        return states.masked_fill(~inside[None, :, :, None], 0).cpu()

    done, total = 0, sum(lengths)
    for chosen in token_batches(lengths, budget=budget, same_length=not encoder.padding_invariant):
        numbers = [places[i] for i in chosen]
        states = in_halves(layers, collate(texts, numbers, encoder.device)).numpy()
        for layer, values in enumerate(states):
            if not np.isfinite(values).all():
                raise DegenerateLayerError(
                    f"layer {layer} of {encoder.description.name} is not finite: expected finite token states, got NaN "
                    f"or infinity in {dtype_and_advice(encoder)}"
                )
        yield numbers, states
        done += sum(lengths[i] for i in chosen)
        report(f"reading with {short_name(encoder.description.name)}", done, total)


@contextlib.contextmanager
def kept_token_states(
    encoder: Encoder,
    texts: TokenizedTexts,
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    *,
    batch_tokens: int | None = None,
) -> Iterator[NDArray[np.float32]]:
    """Give the states of chosen tokens at every layer, from a temporary file that is removed afterwards.

    Args:
        encoder: A loaded encoder.
        texts: What its tokenizer made of the texts.
        rows: (n,) numbers of the texts.
        places: (n,) places of the tokens in them, from 0.
        batch_tokens: As for `token_states`.

    Yields:
        (layer, n, feature) float32, a memory map: of these, a layer at a time should be read.
    """
    shape = (encoder.n_layers, len(rows), encoder.description.hidden_size)
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(texts) + 1))
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layerprobe-"))
            with (Path(folder) / "states").open("w+b") as file:
                reserve(file, np.dtype(np.float32).itemsize * math.prod(shape))
                mapped = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
        except OSError as error:
            raise StoreError(
                f"cannot keep token states in a temporary file in {tempfile.gettempdir()} "
                f"({error.strerror or error}): free space, or name another folder with TMPDIR"
            ) from error
        try:
            distinct = np.unique(rows).tolist()
            for numbers, states in token_states(encoder, texts, rows=distinct, batch_tokens=batch_tokens):
                for i, number in enumerate(numbers):
                    mine = order[starts[number] : starts[number + 1]]
                    mapped[:, mine] = states[:, i, places[mine]]
            yield mapped
        finally:
            del mapped
