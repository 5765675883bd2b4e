"""An exported folder, with graphs of 8 bits: written, read back, and compared with the model in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.encoders.backends.choice import USUAL_TEXTS
from layerprobe.encoders.backends.graph import Graph
from layerprobe.encoders.backends.int8 import FILES, check_int8, read_int8, write_int8
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import ModelSpec
from layerprobe.encoders.pooling import pool
from layerprobe.errors import DataError, ModelError
from layerprobe.export.layout import Layout
from layerprobe.export.values import Int8File
from layerprobe.files.images import prompted

LEAST = 0.9
"""Mean cosine to the embeddings in float32, below which a graph is no export of the model."""


def check_backends(backends: str | Sequence[str]) -> tuple[str, ...]:
    """Return the backends that are to have 8 bits; see `check_int8`."""
    names = tuple(dict.fromkeys([backends] if isinstance(backends, str) else backends))
    check_int8(names)
    return names


def int8_files(
    folder: Path, layout: Layout, backends: Sequence[str], *, name: str, write: bool
) -> tuple[Int8File, ...]:
    """Return what the graphs of 8 bits in an export differ by from its model, once they are written there.

    Both embed the same texts in one batch, or one at a time where padding would change them; `name` is the model's.

    Raises:
        DataError: If the model is one of images.
        ModelError: If it cannot be computed in 8 bits, or its embeddings become others.
        OSError: If a file cannot be written.
    """
    if not backends:
        return ()
    if layout.n_extra is not None:
        raise DataError("expected a model of texts to write in 8 bits, got one of images")
    written = load_encoder(ModelSpec(str(folder), display_name=name), device="cpu")
    if write:
        write_int8(written, folder, backends)
    expected, found = _embedded(written, layout), []
    for backend in backends:
        cosines = _cosines(_embedded(written, layout, read_int8(folder, backend)), expected)
        if not cosines.mean() >= LEAST:  # NaN, too
            raise ModelError(
                f"in 8 bits by {backend} the embeddings of {name} have a mean cosine of {cosines.mean():.3f} to "
                f"those in float32, expected at least {LEAST}: nothing was exported; export it without 8 bits"
            )
        file = folder / FILES[backend]
        found.append(
            Int8File(
                backend=backend,
                file=FILES[backend].as_posix(),
                size=sum(each.stat().st_size for each in file.parent.glob(f"{file.stem}.*")),
                n_texts=len(cosines),
                cosine=float(cosines.mean()),
                lowest=float(cosines.min()),
            )
        )
    return tuple(found)


@torch.inference_mode()
def _embedded(written: Encoder, layout: Layout, graph: Graph | None = None) -> Tensor:
    """Return (text, feature) as a user of the folder has them, by torch or a graph of token states."""
    texts, embeddings = list(prompted(layout.prompt, USUAL_TEXTS)), []
    for some in [texts] if written.padding_invariant else [[text] for text in texts]:
        batch: Any = written.tokenizer(some, padding=True, truncation=True, return_tensors="pt")
        states = written.model(**batch).last_hidden_state if graph is None else torch.from_numpy(graph.run(batch))
        embeddings.append(pool(states, batch["attention_mask"], layout.pooling))
    return torch.cat(embeddings)


def _cosines(a: Tensor, b: Tensor) -> NDArray[np.float32]:
    return np.asarray(torch.nn.functional.cosine_similarity(a, b))
