"""Speed and loss of a model by backend, in 8 bits and with fewer dimensions. Knows resolved models."""

import logging
from collections.abc import Iterator

from layerprobe.encoders.backends.backend import TORCH, engines
from layerprobe.encoders.backends.choice import timed_rounds
from layerprobe.encoders.backends.graph import Graph, open_graph
from layerprobe.encoders.backends.int8 import int8_graphs
from layerprobe.encoders.first_use import dtype_name, load
from layerprobe.encoders.timing import median_range
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import MissingPackageError, ModelError
from layerprobe.shrinking.embedding import Vectors, embedder, tokenized
from layerprobe.shrinking.points_lost import Compared
from layerprobe.shrinking.teacher import Taught, agreement
from layerprobe.shrinking.values import Served

logger = logging.getLogger(__name__)


def served(
    model: SharedModel, blocks: tuple[int, ...], compared: Compared | None, held_out: Taught, dense: Vectors | None
) -> Iterator[Served]:
    """Yield speed and loss of every way to run a model of some blocks; with `dense` also in fewer dimensions.

    Speed and agreement are measured on the texts held out, the loss on the test split of a task.
    """
    graphs, encoder, dtype = _graphs(model), model.encoder, dtype_name(model.options)
    lengths, seconds = timed_rounds(encoder, graphs, model.options, held_out.texts)
    texts = tokenized(model, held_out.texts)
    for name in (TORCH, *graphs):
        milliseconds, low, high = median_range([1e3 * elapsed / len(lengths) for elapsed in seconds[name]])
        for weight in (None, dense)[: 1 + (dense is not None)]:
            embed = embedder(model, graph=graphs.get(name), dense=weight)
            yield Served(
                blocks=blocks,
                run_by=name if dtype == "float32" or "int8" in name else f"{name} {dtype}",
                dimensions=encoder.description.hidden_size if weight is None else len(weight),
                milliseconds=milliseconds,
                interval=(low, high),
                agreement=100 * agreement(embed(texts), held_out.gold),
                loss=None if compared is None else compared.losses([(model, embed)], (0,), "test")[0],
            )


def _graphs(model: SharedModel) -> dict[str, Graph]:
    """Return the model as a graph of every installed backend, also in 8 bits; failures are logged."""
    # of its own: an export may change a model
    encoder, options, graphs = load(model.checkpoint), model.options, dict[str, Graph]()
    for name, engine in engines().items():
        try:
            engine.check(encoder.device.type, dtype_name(options))
            graphs[name] = open_graph(engine, encoder, model.checkpoint, options)[0]
        except ModelError as error:
            logger.log(logging.INFO if isinstance(error, MissingPackageError) else logging.WARNING, "%s", error)
    try:
        return graphs | int8_graphs(encoder, options.pooling)
    except ModelError as error:
        logger.warning("%s", error)
        return graphs
