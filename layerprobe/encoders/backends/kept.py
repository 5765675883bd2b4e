"""Graphs of encoders on disk: made once, read again, and compared with torch whenever one is opened.

root/results/graphs/<key>/ has the library's own files and SHA256SUMS.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from filelock import FileLock

from layerprobe.encoders.backends.backend import Engine
from layerprobe.encoders.backends.graph import PLAIN, Graph, differences, exported, probes
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import first_sentence, is_out_of_memory
from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.model import Settled
from layerprobe.encoders.options import dtype_name
from layerprobe.errors import ModelError
from layerprobe.files.atomic import inside, make_directory, store_errors
from layerprobe.files.folders import SUMS, folder_errors, folder_problems, new_folder
from layerprobe.files.serialisation import digest
from layerprobe.process import OneAtATime
from layerprobe.store.store import Store
from layerprobe.versions import GRAPH_VERSION, __version__

logger = logging.getLogger(__name__)

TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
"""Difference from torch in float32 at most, as a share of a layer's largest feature."""

_OPENING = OneAtATime()
"""Neither torch.export nor what silences it is for several threads at once."""
Opened = tuple[Graph, tuple[float, ...]]
"""A graph, and by how much it differs from torch at every layer."""


def open_graph(engine: Engine, encoder: Encoder, checkpoint: Checkpoint, options: Settled) -> Opened:
    """Return the graph of an encoder from the store; it is made first if it is not there.

    Waits for another process that is making the same graph, and for another thread that is opening any; makes a damaged
    one again.
    """
    root = Store(options.cache_dir).root
    folder = _folder(engine, encoder, checkpoint, options, root)
    make_directory(root / "locks")
    with _OPENING, store_errors("lock", root / "locks"), FileLock(root / "locks" / f"{folder.name}.lock"):
        problems = list(folder_problems(folder))
        for problem in problems:
            logger.warning("%s: making the graph again", problem)
        if problems or not (folder / SUMS).is_file():
            _make(engine, encoder, options, folder)
        return _compiled(engine, encoder, options, folder)


def _folder(engine: Engine, encoder: Encoder, checkpoint: Checkpoint, options: Settled, root: Path) -> Path:
    """Return the folder of the graph of an encoder, named by all that it depends on.

    One graph serves float32 and bfloat16, all tokenizers that give the same features, and all processors.
    """
    key = digest(
        {
            "model": "" if checkpoint.revision.startswith("sha256:") else checkpoint.source,
            **{name: value for name, value in checkpoint.identity.items() if name != "tokenizer"},
            "features": sorted(probes(encoder)[0]),
            "pooling": options.pooling,
            "norm": encoder.description.norm,
            "attn": options.attn,
            "backend": engine.name,
            "version": GRAPH_VERSION,
            "layerprobe": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **engine.versions(),
        }
    )
    return inside(root, root / "results" / "graphs" / key)


def _make(engine: Engine, encoder: Encoder, options: Settled, folder: Path) -> None:
    """Make a graph with the encoder's own attention, or else with plain one, and keep the first that equals torch.

    OpenVINO's fused attention gives NaN where a token can attend to nothing, such as padding next to windows.
    """
    make_directory(folder.parent)
    if encoder.model.config._attn_implementation != PLAIN:
        try:
            return _make_one(engine, encoder, options, folder)
        except ModelError as error:
            logger.info("%s; trying plain attention", error)
    return _make_one(engine, encoder, options, folder, plain=True)


def _make_one(engine: Engine, encoder: Encoder, options: Settled, folder: Path, *, plain: bool = False) -> None:
    advice = "choose another folder with --cache-dir"
    with folder_errors(folder, advice=advice), new_folder(folder, replace=True) as new:
        logger.info("converting %s to %s", encoder.description.name, engine.name)
        with _one_line(engine, encoder, "be converted to"):
            engine.write(exported(encoder, options.pooling, plain=plain), new)
        _compiled(engine, encoder, options, new)


def _compiled(engine: Engine, encoder: Encoder, options: Settled, folder: Path) -> Opened:
    """Compile the graph of a folder, and compare it with torch."""
    dtype, name = dtype_name(options), encoder.description.name
    with _one_line(engine, encoder, "be run by"):
        graph = engine.compile(folder, dtype)
        errors = differences(graph, encoder, options.pooling, max_length=options.max_length)
    wrong = [layer for layer, difference in enumerate(errors) if not difference <= TOLERANCES[dtype]]  # NaN is wrong
    if wrong:
        raise ModelError(
            f"{engine.name} does not compute what torch does for {name}: layer {wrong[0]} differs by "
            f"{errors[wrong[0]]:.1e} of its largest feature, expected at most {TOLERANCES[dtype]:.0e}; "
            "take --backend torch"
        )
    return graph, errors


@contextlib.contextmanager
def _one_line(engine: Engine, encoder: Encoder, doing: str) -> Iterator[None]:
    """Turn what a library raises into one line; what cannot be written, or finds no memory, passes as it is."""
    try:
        yield
    except Exception as error:  # exporters raise anything
        if isinstance(error, OSError) or is_out_of_memory(error):
            raise
        first: BaseException = error
        while first.__cause__ is not None:  # what went wrong first stands behind advice
            first = first.__cause__
        raise ModelError(
            f"{encoder.description.name} cannot {doing} {engine.name}: {first_sentence(first)}; take --backend torch"
        ) from error
