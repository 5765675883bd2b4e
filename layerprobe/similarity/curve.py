"""From a map to one value a layer. Knows maps; knows no arrays of embeddings."""

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.similarity.values import Alignment, SimilarityCurve, SimilarityMap


def similarity_curve(similarities: SimilarityMap, *, alignment: Alignment = "same-index") -> SimilarityCurve:
    """Return the similarity of each layer of the model to its partner in the reference.

    same-index: layer l against layer l. relative-depth: layer l of n blocks against layer round(l m / n) of m
    blocks, halves up. best-match: layer l against the layer of the reference most similar to it, the earlier one
    of equals; such a curve never shows less similarity than the others. previous-layer, for a map of a model against
    itself: layer l against l - 1, which says how little block l changes; layer 0 against itself.

    Returns:
        One value a layer of the model, in the range of the map: debiased ones can be negative.

    Examples:
        >>> from layerprobe.similarity.measures.cka import CKA
        >>> values = ((0.9, 0.5), (0.6, 0.7), (0.8, 0.2))
        >>> three_by_two = SimilarityMap(measure=CKA(), values=values, n_samples=50)
        >>> similarity_curve(three_by_two, alignment="relative-depth").values
        (0.9, 0.7, 0.2)
        >>> similarity_curve(three_by_two, alignment="best-match").reference_layers
        (0, 1, 0)
    """
    check_choice(alignment, Alignment, name="alignment")
    rows = similarities.values
    n, m = len(rows) - 1, len(rows[0]) - 1
    partners = tuple(range(n + 1))
    if alignment == "best-match":
        partners = tuple(row.index(max(row)) for row in rows)
    elif alignment == "relative-depth":
        # Integers, because round() takes halves to the even neighbour: 8 blocks against 4 would skip unevenly.
        partners = tuple((2 * layer * m + n) // (2 * n) if n else 0 for layer in partners)
    elif alignment == "previous-layer":
        partners = tuple(min(max(layer - 1, 0), m) for layer in partners)
    elif n != m:
        raise DataError(
            f"the model has {n + 1} layers and the reference {m + 1}, expected equally many for same-index: "
            "use relative-depth or best-match"
        )
    values = tuple(row[partner] for row, partner in zip(rows, partners, strict=True))
    return SimilarityCurve(values=values, reference_layers=partners, alignment=alignment)
