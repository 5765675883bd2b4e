"""Computes readings of a model by name, or loads them from the store."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Read, as_read, distinct_texts
from layerprobe.files.images import readable_as
from layerprobe.readings.registry import READINGS
from layerprobe.readings.source import Source
from layerprobe.readings.values import LayerCurve, Views
from layerprobe.tasks.values import Items, Task


def read_curves(
    model: ModelLike,
    data: Sequence[str] | Items | Read,
    names: Collection[str],
    *,
    task: Task | None = None,
    documents: Mapping[str, str] | None = None,
    views: Views | None = None,
) -> dict[str, LayerCurve]:
    """Return numbers by layer of a model by name, with their errors where these are known.

    Texts, or those of items, are for all that needs no labels, and repeated ones count once; of a task the validation
    split is scored. Texts of one document, where documents are given, are not independent of each other.

    Returns:
        In the order of `READINGS`; without those that this model does not have, such as an intrinsic dimension where
        most texts have one embedding.
    """
    for name in names:
        READINGS.check(name)
    texts = data.texts if isinstance(data, Items | Read) else distinct_texts(data)
    readings = {name: READINGS[name] for name in dict.fromkeys((*READINGS, *names)) if name in names}
    if readable_as(texts) != "text":
        readings = {name: reading for name, reading in readings.items() if reading.needs not in ("two views", "views")}
        if names and not readings:
            raise DataError(f"expected texts for {', '.join(names)}, whose words can be left out, got images")
    needs = {reading.needs: name for name, reading in readings.items()}
    if "labels" in needs and task is None:
        raise DataError(f"expected a task for {needs['labels']}, got texts alone")
    if "reference" in needs:
        raise DataError(f"expected readings of one model, got {needs['reference']}, which needs a reference: compare")
    views = views or Views()
    if "views" not in needs:
        views = replace(views, n_views=2)
    if needs.keys() & {"two views", "views"} and len(set(texts)) == 1:
        raise DataError("expected at least two texts to tell their views apart, got one")
    checkpoint = resolve_checkpoint(model, items=readable_as(texts))
    read = data if isinstance(data, Read) else as_read(checkpoint, data if isinstance(data, Items) else texts)
    source = Source(
        checkpoint=replace(checkpoint, options=read.options),
        texts=read.texts,
        earlier=read.earlier,
        task=task,
        documents=documents,
        views=views,
    )
    curves = {name: reading.compute(source) for name, reading in readings.items() if reading.compute is not None}
    available = {name: curve for name, curve in curves.items() if curve is not None}
    for name, curve in available.items():
        if len(curve.values) != source.n_layers:
            raise DataError(f"expected {name} at each of {source.n_layers} layers, got {len(curve.values)} values")
    return available
