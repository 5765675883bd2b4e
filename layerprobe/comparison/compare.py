"""Similarity of models' embeddings, layer by layer."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.comparison.arrays import SUFFIXES, as_layers
from layerprobe.comparison.differences import Differences, compare_results
from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.context import EMBEDDED, current, in_parts, part
from layerprobe.encoders.device import float64_device, resolve_device
from layerprobe.encoders.identity import ModelLike, resolve_all
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files.images import ImageItem, readable_as
from layerprobe.files.serialisation import digest
from layerprobe.names import distinct_names
from layerprobe.results.shown import Shown
from layerprobe.similarity.cautions import cautions
from layerprobe.similarity.checks import MIN_SAMPLES, as_array
from layerprobe.similarity.cka import estimate_cka
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.similarity.maps import MapEstimate, measure_layers
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import (
    Alignment,
    LayerDiagnostics,
    LayerMeasure,
    Measure,
    SimilarityMap,
    resolve_measure,
)
from layerprobe.store.shards import StoredLayer
from layerprobe.tasks.evaluation import evaluate_outputs, outputs_of_layer
from layerprobe.tasks.explored import ItemSource, LayerOutputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.quality import distinct_texts
from layerprobe.tasks.values import Items, Task, TextFile, TextSplit
from layerprobe.versions import SIMILARITY_VERSION

Compared = Embeddings | ModelLike | ArrayLike
"""Inputs of comparisons: a model, its embeddings, or arrays for `layerprobe.comparison.arrays.as_layers`."""


def compare(
    model: Compared | Shown,
    reference: Compared | Shown,
    texts: Sequence[str] | TextFile | Items | Task | None = None,
    *,
    measure: Measure | str | None = None,
    alignment: Alignment | None = None,
    intervals: bool = True,
    groups: Mapping[str, str] | None = None,
    device: str | None = None,
) -> Comparison | SimilarityMap | Differences:
    """Return the similarity of every layer of a model to every layer of another, or differences between two results.

    Args:
        model: A result to compare with another one of its kind, see `compare_results`; or a model, by name or as
            `Model`; embeddings of `extract`; or arrays: (samples, features) of one
            layer, (samples, layers, features), a sequence or a mapping of single layers, or a file of them, see
            `layerprobe.comparison.arrays.as_layers`.
        reference: Likewise; arrays with arrays, or with embeddings of the same texts.
        texts: Texts or a task to compare models on; not for embeddings and arrays, which have their own.
        measure: Name of a measure, such as svcca, or an instance; debiased linear CKA of raw features by default.
        alignment: As in `compare_all`; not for arrays.
        intervals: Whether to compute intervals and bands.
        groups: The group of each text, such as a document, if texts of one group are not independent; not for arrays.
        device: cpu, cuda or cuda:1, the device for CKA; by default that of the first model.

    Returns:
        A `Comparison`; for arrays the map of layers, a `SimilarityMap`; for two results `Differences`.

    Raises:
        DataError: If there are no texts to compare models on, the two have different types, or an array has no more
            samples than layers, for example because layers come first.
        LayerProbeError: As in `compare_all`.

    Examples:
        >>> layers = np.random.default_rng(0).normal(size=(50, 3, 8))
        >>> compare(layers, layers).shape
        (3, 3)
    """
    compare_embedded = functools.partial(
        compare_all, measure=measure, alignment=alignment, intervals=intervals, groups=groups
    )
    if isinstance(model, Shown) or isinstance(reference, Shown):
        if texts is not None or measure is not None or alignment or groups:
            raise DataError("expected no texts, measure, alignment or groups for results, which contain their scores")
        return compare_results(model, reference)
    if isinstance(model, Embeddings) and isinstance(reference, Embeddings):
        if texts is not None:
            raise DataError("expected no texts for embeddings, which have their own")
        (compared,) = compare_embedded(model, [reference], device=device or "auto").comparisons
        return _with_warnings(compared, model, reference)
    one_embedded = isinstance(model, Embeddings) != isinstance(reference, Embeddings)
    if one_embedded and not (_is_array(model) and _is_array(reference)):
        raise DataError("expected two models and texts, or the embeddings of two, got one of each: extract both")
    if _is_array(model) or _is_array(reference):
        if not (_is_array(model) and _is_array(reference)) or texts is not None:
            raise DataError("expected two arrays to compare, or two models and texts, got both")
        if alignment or groups:
            raise DataError("expected no alignment or groups for arrays")
        return _compare_arrays(model, reference, resolve_measure(measure), intervals=intervals, device=device or "auto")
    if texts is None:
        raise DataError("expected texts or a task to compare models on, as in compare(model, reference, texts)")
    texts = tuple(texts) if isinstance(texts, Iterator) else texts
    models = [cast(ModelLike, model), cast(ModelLike, reference)]
    first, second = resolve_all(models, items=readable_as(distinct_texts(texts)))
    with part(start=0, share=EMBEDDED, whole=1):
        embedded = [*in_parts(lambda one: extract(one, texts), (first, second))]
    with part(start=EMBEDDED, share=1 - EMBEDDED, whole=1):
        result = compare_embedded(embedded[0], embedded[1:], device=device or first.asked.device)
    compared = _with_warnings(result.comparisons[0], *embedded)
    return dataclasses.replace(compared, item_source=item_source(texts, embedded))


def _with_warnings(compared: Comparison, *embedded: Embeddings) -> Comparison:
    """Return a comparison with the warnings of its embeddings."""
    warnings = [warning for embeddings in embedded for warning in embeddings.warnings]
    return dataclasses.replace(compared, warnings=tuple(dict.fromkeys((*warnings, *compared.warnings))))


def item_source(data: object, models: Sequence[Embeddings], split: TextSplit = "all") -> ItemSource | None:
    """Return the source of items and outputs of each layer for the page of a comparison.

    If the texts of all splits are embedded, the items are those of the test split. None for texts without a task, if
    outputs need more than embeddings, such as a probe or prompts, or if a layer has none.
    """
    if not isinstance(data, Task):
        return None
    split, kind = "test" if split == "all" and not data.one_piece else split, KINDS[data.kind]
    items = data.split(split)
    if items.prompts is not None or not (kind.zero_shot == "cosine" or kind.learning().outputs):
        return None
    groups = []
    for embeddings, name in zip(models, distinct_names([one.model.name for one in models]), strict=True):
        layers = embeddings.layers
        try:
            outputs = [outputs_of_layer(embeddings.layer(layer), embeddings.rows, data, items) for layer in layers]
            scored = [evaluate_outputs(data.kind, one, items.gold) for one in outputs]
        except DataError:  # a layer of zeros, or one target: similarities report the problem
            return None
        pairs = [(one, evaluated.threshold) for one, evaluated in zip(outputs, scored, strict=True)]
        groups.append(
            LayerOutputs(
                name=name,
                layers=layers,
                outputs=functools.partial(list, pairs),
                scores=[evaluated.metrics[data.primary] for evaluated in scored],
                vectors=embeddings.vectors,
            )
        )
    ends = [(number, len(group.layers) - 1) for number, group in enumerate(groups)]
    start = (ends[0], ends[1]) if len(ends) > 1 else ((0, 0), ends[0])
    return ItemSource(task=data, split=split, groups=tuple(groups), start=start)


def _is_array(value: object) -> bool:
    """Return whether a value is an array, arrays by layer, or a file of arrays."""
    if isinstance(value, str | Path):
        return Path(value).suffix in SUFFIXES
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, Mapping | list | float) or hasattr(type(value), "shape")


def _compare_arrays(model: Any, reference: Any, measure: Measure, *, intervals: bool, device: str) -> SimilarityMap:
    """Return the map of arrays by layer."""
    level = current().level if intervals else None
    pair = (model, reference)
    first, second = map(_layers_of, pair)
    if isinstance(measure, LayerMeasure):
        return measure_layers(first, second, measure, level=level).map
    assert isinstance(measure, CKA)
    named = [("the first", first), ("the second", second)]
    return estimate_cka(named, measures=[measure], level=level, device=_torch_device(device))[0].map


def _layers_of(given: Any) -> Sequence[NDArray[Any]]:
    """Return the layers of arrays; raise DataError if an array has no more samples than layers."""
    read = as_layers(given)
    shape: tuple[int, ...] = tuple(getattr(given, "shape", ()))
    if len(shape) == 3 and shape[0] <= shape[1] and not isinstance(given, Embeddings):
        n, layers, _ = shape
        raise DataError(
            f"expected (samples, layers, features), got an array of {shape}: if its {n} are layers of {layers} "
            "samples, pass list(array), a list of layers; if not, "
            "[array[:, i] for i in range(array.shape[1])]"
        )
    return [as_array(layer.read(slice(None)), name=layer.name) for layer in read]


def compare_all(
    model: Embeddings,
    references: Sequence[Embeddings],
    *,
    measure: Measure | str | None = None,
    alignment: Alignment | None = None,
    intervals: bool = True,
    groups: Mapping[str, str] | None = None,
    device: str = "auto",
) -> Comparisons:
    """Return the similarity of one model to each of several references, from one pass over the texts.

    Args:
        model: Embeddings of the model, from `extract`.
        references: Embeddings of the references, for the same texts.
        measure: Name of a measure, such as svcca, or an instance; debiased linear CKA of raw features by default.
        alignment: same-index, relative-depth, best-match or previous-layer; same-index by default, or
            relative-depth if the depths differ.
        intervals: Whether to compute intervals, bands and paired differences between references, which take time and
            memory.
        groups: The group of each text, such as a document, if texts of one group are not independent.
        device: auto, cpu, cuda or cuda:1, the device for CKA.

    Raises:
        MisalignedSamplesError: If the texts are not the same.
        DegenerateLayerError: If the similarity of a layer is undefined: constant, or fewer than four texts.
        DataError: If there is no group for a text, or the alignment does not fit: previous-layer needs two layers that
            differ between texts.
    """
    measure, level = resolve_measure(measure), current().level if intervals else None
    if len(model.distinct) < MIN_SAMPLES:
        raise DegenerateLayerError(
            f"expected at least {MIN_SAMPLES} distinct texts to compare models on, got {len(model.distinct)}"
        )
    if alignment == "previous-layer" and len(model.layers) < 2:
        raise DataError(
            f"{model.model.name}: expected two layers that differ between texts, to compare with each other, got one"
        )
    for reference in references:
        _check_same_texts(model, reference)
        if alignment == "same-index" and model.n_layers != reference.n_layers:
            raise DataError(
                f"{model.model.name} has {model.n_layers} layers and {reference.model.name} {reference.n_layers}, "
                "expected equally many for same-index: use relative-depth or best-match"
            )
    numbers = None if groups is None else groups_of(model.bare, groups)
    key = digest(
        [
            SIMILARITY_VERSION,
            [embeddings.fingerprint for embeddings in (model, *references)],
            measure,
            alignment,
            level,
            numbers,
        ]
    )
    result = model.store.load_result("similarity", key, Comparisons)
    if result is None:
        result = _compared(
            model,
            references,
            measure,
            alignment=alignment,
            level=level,
            groups=None if numbers is None else np.array(numbers),
            device=device,
        )
        model.store.save_result("similarity", key, result)
    named = [
        # the users' own names for the models: a moved folder has the same fingerprint
        dataclasses.replace(
            comparison,
            model=model.model,
            reference=reference.model,
            settings=model.settings,
            reference_settings=reference.settings,
            warnings=_warnings(comparison, model, reference, n_groups=None if numbers is None else max(numbers) + 1),
        )
        for comparison, reference in zip(result.comparisons, references, strict=True)
    ]
    return dataclasses.replace(result, comparisons=tuple(named))


def _compared(
    model: Embeddings,
    references: Sequence[Embeddings],
    measure: Measure,
    *,
    alignment: Alignment | None,
    level: float | None,
    groups: NDArray[np.intp] | None,
    device: str,
) -> Comparisons:
    estimates = _estimates(model, references, measure, level=level, groups=groups, device=device)
    other_estimates = estimates[len(references) :]
    comparisons = []
    places = []
    for number, reference in enumerate(references):
        estimate = estimates[number]
        by_default: Alignment = "same-index" if model.n_layers == reference.n_layers else "relative-depth"
        curve = estimate.curve(alignment or by_default)
        partners = tuple(map(reference.nearest, curve.reference_layers))  # for layers left out
        places.append(list(enumerate(partners)))
        with_left_out = functools.partial(
            dataclasses.replace,
            first_layers=(model.first_layer, reference.first_layer),
            collapsed=(model.collapsed, reference.collapsed),
        )
        comparisons.append(
            Comparison(
                model=model.model,
                reference=reference.model,
                texts_digest=model.stored.manifest.key.texts_digest,
                pooling=model.pooling,
                map=with_left_out(estimate.map),
                curve=dataclasses.replace(curve, reference_layers=partners),
                other_normalization=with_left_out(other_estimates[number].map) if other_estimates else None,
                steps=estimate.differences(estimate, list(itertools.pairwise(places[number]))),
                model_diagnostics=diagnostics(model),
                reference_diagnostics=diagnostics(reference),
                unit="image" if isinstance(model.distinct[0], ImageItem) else "text",
            )
        )
    differences = [
        estimates[0].differences(estimates[number], list(zip(places[0], places[number], strict=True)))
        for number in range(1, len(references))
    ]
    return Comparisons(comparisons=tuple(comparisons), differences=tuple(differences) if all(differences) else ())


def _estimates(
    model: Embeddings,
    references: Sequence[Embeddings],
    measure: Measure,
    *,
    level: float | None,
    groups: NDArray[np.intp] | None,
    device: str,
) -> Sequence[MapEstimate]:
    """Return one estimate per reference, and for CKA one more per reference of the other normalization."""
    if isinstance(measure, LayerMeasure):
        compared = functools.partial(
            measure_layers, _layers(model), measure=measure, level=level, groups=groups, model_name=model.model.name
        )
        return [*in_parts(lambda other: compared(_layers(other), reference_name=other.model.name), references)]
    assert isinstance(measure, CKA)
    # A model compared with itself is read once.
    others = [reference for reference in references if reference.fingerprint != model.fingerprint]
    position = {reference.fingerprint: number + 1 for number, reference in enumerate(others)}
    other = dataclasses.replace(measure, normalize="zscore" if measure.normalize == "raw" else "raw")
    return estimate_cka(
        [(embeddings.model.name, _layers(embeddings)) for embeddings in (model, *others)],
        measures=[measure, other],
        pairs=[(0, position.get(reference.fingerprint, 0)) for reference in references],
        level=level,
        groups=groups,
        device=_torch_device(device),
    )


def diagnostics(embeddings: Embeddings) -> tuple[LayerDiagnostics, ...]:
    """Return diagnostics of each layer for what can distort similarities; computed once for stored embeddings.

    Raises:
        DegenerateLayerError: If a layer is constant or has fewer than four texts.
    """
    kind = tuple[LayerDiagnostics, ...]
    key = digest([SIMILARITY_VERSION, embeddings.fingerprint])
    by_layer: tuple[LayerDiagnostics, ...] | None = embeddings.store.load_result("diagnostics", key, kind)
    if by_layer is None:
        name, norm = embeddings.model.name, embeddings.model.norm
        by_layer = tuple(
            diagnose(rows, name=f"layer {layer} of {name}", norm=norm) for layer, rows in enumerate(_layers(embeddings))
        )
        embeddings.store.save_result("diagnostics", key, by_layer)
    return by_layer


def groups_of(texts: Sequence[str], groups: Mapping[str, str]) -> list[int]:
    """Return the group number of each text, from 0.

    Raises:
        DataError: If `groups` is not a mapping, or a text has no group.
    """
    if not isinstance(groups, Mapping):
        raise DataError(
            f"expected groups as a mapping of texts to groups, got a {type(groups).__name__}: pass "
            "dict(zip(texts, groups))"
        )
    numbers: dict[str, int] = {}
    for text in texts:
        if text not in groups:
            raise DataError(f"expected a group for every text, got none for {text[:60]!r}")
        numbers.setdefault(groups[text], len(numbers))
    return [numbers[groups[text]] for text in texts]


def _warnings(
    comparison: Comparison, model: Embeddings, reference: Embeddings, *, n_groups: int | None
) -> tuple[str, ...]:
    warnings = cautions(
        comparison.map.measure,
        comparison.map.n_samples,
        (model.model.name, comparison.model_diagnostics),
        (reference.model.name, comparison.reference_diagnostics),
        n_groups=n_groups,
        alignment=comparison.curve.alignment,
        effective_shares=comparison.map.effective_shares,
        layers=comparison.map.layers,
    )
    if model.settings == reference.settings:
        return warnings
    differ = " and ".join(sorted({name for name, _ in model.settings.items() ^ reference.settings.items()}))
    return (
        f"{model.model.name} and {reference.model.name} were embedded with different {differ}: this may explain "
        "differences between them",
        *warnings,
    )


def _layers(embeddings: Embeddings) -> list[StoredLayer]:
    return [embeddings.stored.rows(embeddings.nearest(layer)) for layer in range(embeddings.n_layers)]


def _check_same_texts(model: Embeddings, reference: Embeddings) -> None:
    digests = {embeddings.stored.manifest.key.texts_digest for embeddings in (model, reference)}
    if len(digests) == 1 or model.bare == reference.bare:
        return
    few, many = sorted((model, reference), key=lambda embeddings: len(embeddings.distinct))
    bare = {text.removeprefix("query: ").removeprefix("document: ") for text in many.bare}
    if len(many.bare) > len(few.bare) and bare == set(few.bare):
        raise MisalignedSamplesError(
            f"{many.model.name} has prompts for queries and documents and {few.model.name} has none, so that a text "
            "that is both a query and a document counts twice for one model only: give the task prompts for both, or "
            "empty ones"
        )
    same = set(model.distinct) == set(reference.distinct)
    raise MisalignedSamplesError(
        f"{model.model.name} embedded {len(model.distinct)} texts and {reference.model.name} "
        + ("the same in another order" if same else f"{len(reference.distinct)} others")
        + ": extract both with the same texts in the same order"
    )


def _torch_device(device: str) -> str:
    return str(float64_device(resolve_device(device)))
