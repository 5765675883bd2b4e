"""Warnings about similarities. Knows diagnostics and measures; knows no arrays."""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence

from layerprobe.errors import option
from layerprobe.interval import LEAST_SHARE
from layerprobe.similarity.values import Alignment, Diagnosed, LayerDiagnostics, Measure

COPIES = 0.01
"""Share of duplicate rows from which to warn: one text in a hundred counts more than once."""
INFLATION = 0.01
"""Debiased CKA of independent layers from copies alone above which the second decimal is wrong."""
FEW_SAMPLES = 100
"""Below, intervals of CKA are wider than +- 0.07, more than the difference of adjacent layers in most encoders."""
OUTLIER_WEIGHT = 0.25
"""Share of HSIC(K, K) in one or three features: layers that agree in only these have at least this linear CKA."""
OUTLIER_RATIO = 5
"""Smallest variance of an outlier, in multiples of the average feature: in narrow models every feature matters."""
ANISOTROPY = 0.9
"""Mean cosine above which the common direction makes up nine tenths of every cosine."""
LEFT_OUT = 0.1
"""Share of features without variance from which to warn: healthy models have a few dead ones, 3 of 384 in
MiniLM."""
HALF_PRECISION = ("float16", "bfloat16")
"""Dtypes with three and two digits; differences of texts that point the same way have fewer."""
MANY_TO_CHOOSE = 1000
"""Below, the largest of 13 debiased CKAs that differ only by chance is too high in the second decimal: simulated layers
with a CKA of 0, 0.5 and 0.8 gave 0.025, 0.024 and 0.011 too much on 100 texts, 0.005, 0.009 and 0.004 on 500, 0.002,
0.006 and 0.003 on 1000. In standard errors it does not shrink: for every n, 15 to 35 % of 95 % intervals are above the
truth."""
FEW_GROUPS = 100
"""Below, pairs within groups visibly raise debiased CKA: 20 groups of 10 sentences gave 0.62 instead of 0.50."""


ALL = range(sys.maxsize)
"""Every layer of any model."""
Layers = Mapping[int, LayerDiagnostics]
"""Diagnostics of layers by number."""


def cautions(
    measure: Measure,
    n_samples: int,
    model: Diagnosed,
    reference: Diagnosed,
    *,
    n_groups: int | None = None,
    alignment: Alignment | None = None,
    effective_shares: tuple[Sequence[float], Sequence[float]] | None = None,
    layers: tuple[range, range] = (ALL, ALL),
) -> tuple[str, ...]:
    """Return warnings about distortions of similarities of these layers, one line per cause and model.

    With m copies among n rows, independent layers with chance CKA c get a debiased linear CKA of about x / (1 + x),
    x = 2 m / n x c / (1 - c). With variance shares v of features and |K|^2 = tr(K)^2 / ((n - 1) c), a feature's part
    of HSIC(K, K) is at least v^2 (n - 1) c. Each measure has its own value for independent layers.

    Args:
        measure: The measure.
        n_samples: Number of compared rows.
        model: Name of the model and diagnostics of its layers.
        reference: The same for the reference.
        n_groups: Number of groups as units of the intervals; None if the units are texts.
        alignment: Alignment of the curve, if there is one.
        effective_shares: Effective shares of the map, by layer of the model and of the reference.
        layers: Layers of the model and of the reference that are not left out; by default all.

    Returns:
        Sentences without line breaks with place, problem, reason and advice; empty if nothing is
        wrong.

    Source, for copies: the mean of the inner products of copies, to first order, confirmed by simulation.

    Examples:
        >>> layer = LayerDiagnostics(
        ...     n_samples=2758, n_features=768, dtype="float32", norm="none", duplicates=0, constant_features=0,
        ...     mean_norm=1.0, mean_cosine=0.3, top_dimension_share=0.01, top_three_share=0.03,
        ...     effective_rank=670.0, intrinsic_dimension=20.0, chance_cka=0.22,
        ... )
        >>> from layerprobe.similarity.measures import CKA
        >>> cautions(CKA(), 2758, ("electra", (layer,)), ("bert", (layer,)))
        ()
        >>> cautions(CKA(estimator="biased"), 2758, ("electra", (layer,)), ("bert", (layer,)))[0][:74]
        'layer 0 of electra and layer 0 of bert: independent layers with these spec'
    """
    lines = _few_units(n_samples, n_groups, chosen=alignment == "best-match" and len(reference[1]) != 1)
    if model[1] and reference[1]:
        lines.append(measure.chance_warning(n_samples, model, reference))
    for (name, diagnosed), numbers in zip((model, reference), layers, strict=True):
        measured = {i: layer for i, layer in enumerate(diagnosed) if i in numbers}
        lines += [check(measure, name, measured) for check in CHECKS]
    for (name, _), shares, numbers in zip((model, reference), effective_shares or ((), ()), layers, strict=True):
        units = "texts" if n_groups is None else "groups"
        lines.append(_few_decide(measure, name, shares, numbers, units=units))
    return tuple(dict.fromkeys(line for line in lines if line))


def _few_units(n: int, n_groups: int | None, *, chosen: bool) -> list[str | None]:
    """Return warnings about too few texts or groups, also for values chosen among several."""
    lines: list[str | None] = []
    if n < FEW_SAMPLES:
        lines.append(
            f"{n} texts are few: similarities on other texts may differ more than layers do: compare on at least "
            f"{FEW_SAMPLES} texts, better 1000"
        )
    if n_groups is not None and n_groups < FEW_GROUPS:
        lines.append(
            f"{n_groups} groups are few: texts of one group are similar in every layer, which raises "
            "similarities like copies do, beyond the intervals: compare on texts of at least "
            f"{FEW_GROUPS} groups"
        )
    if chosen and n < MANY_TO_CHOOSE:
        lines.append(
            f"best-match takes the largest of several values, which with {n} texts may be largest by chance and "
            "too high, and intervals ignore this choice: compare by same-index or relative-depth, or "
            f"on at least {MANY_TO_CHOOSE} texts"
        )
    return lines


def _few_decide(measure: Measure, name: str, shares: Sequence[float], layers: range, *, units: str) -> str | None:
    where = [i for i, share in enumerate(shares) if i in layers and share < LEAST_SHARE]
    if not where:
        return None
    worst = min(where, key=lambda i: shares[i])
    return (
        f"{_span(where)} of {name}: a few {units} dominate: the effective sample size of the HSIC is "
        f"{100 * shares[worst]:.0f} % of them (layer {worst}), so similarities may be off by more than their "
        f"intervals: look for {units} that differ from the others, or compare {measure.robustly}"
    )


def _copies(measure: Measure, name: str, layers: Layers) -> str | None:
    shares = {i: layer.duplicates / layer.n_samples for i, layer in layers.items()}
    where = [i for i, layer in layers.items() if shares[i] > COPIES or _inflation(layer) > INFLATION]
    if not where:
        return None
    worst = max(where, key=lambda i: layers[i].duplicates)
    return (
        f"{_span(where)} of {name}: up to {layers[worst].duplicates} of {layers[worst].n_samples} texts (layer "
        f"{worst}) have the embedding of an earlier text: copies match in both models, which inflates similarity: "
        "remove repeated texts, also those that differ only in case, spaces or truncated parts"
    )


def _inflation(layer: LayerDiagnostics) -> float:
    """Return the debiased CKA that the copies of a layer give independent layers."""
    odds = layer.chance_cka / max(1 - layer.chance_cka, 1 / layer.n_samples)
    matched = 2 * (layer.duplicates / layer.n_samples) * odds
    return matched / (1 + matched)


def _outliers(measure: Measure, name: str, layers: Layers) -> str | None:
    if measure.normalize != "raw":
        return None
    counts = {i: count for i, layer in layers.items() if (count := _outlying(layer))}
    if not counts:
        return None
    worst = max(counts, key=lambda i: _weight(layers[i], counts[i]))
    layer, count = layers[worst], counts[worst]
    held = f"one of {layer.n_features} features holds" if count == 1 else f"three of {layer.n_features} features hold"
    share = layer.top_dimension_share if count == 1 else layer.top_three_share
    return (
        f"{_span(list(counts))} of {name}: {held} {100 * share:.0f} % of the variance (layer {worst}) and "
        f"at least {100 * _weight(layer, count):.0f} % of its HSIC: similarity follows outlier features and hides the "
        f"others: compare with {option('normalize', 'zscore')}"
    )


def _outlying(layer: LayerDiagnostics) -> int:
    """Return the number of features that dominate a layer: 1, 3, or 0 if many do."""
    for count, share in ((1, layer.top_dimension_share), (3, layer.top_three_share)):
        if share > OUTLIER_RATIO * count / layer.n_features and _weight(layer, count) > OUTLIER_WEIGHT:
            return count
    return 0


def _weight(layer: LayerDiagnostics, count: int) -> float:
    """Return a lower bound on the share of the first 1 or 3 features in HSIC(K, K).

    It uses the squared entries of the covariance at these features; the second and third are smallest if equal.
    """
    squares = layer.top_dimension_share**2
    if count == 3:
        squares += (layer.top_three_share - layer.top_dimension_share) ** 2 / 2
    return squares * (layer.n_samples - 1) * layer.chance_cka


def _constant_features(measure: Measure, name: str, layers: Layers) -> str | None:
    where = [i for i, layer in layers.items() if layer.constant_features > LEFT_OUT * layer.n_features]
    if measure.normalize != "zscore" or not where:
        return None
    worst = max(where, key=lambda i: layers[i].constant_features)
    return (
        f"{_span(where)} of {name}: up to {layers[worst].constant_features} of {layers[worst].n_features} features "
        f"(layer {worst}) are the same for all texts and have no z-score: the similarity ignores them: "
        f"check pooling and model, or compare with {option('normalize', 'raw')}"
    )


def _anisotropy(measure: Measure, name: str, layers: Layers) -> str | None:
    where = [i for i, layer in layers.items() if layer.mean_cosine > ANISOTROPY]
    if not measure.by_cosine or not where:
        return None
    worst = max(where, key=lambda i: layers[i].mean_cosine)
    return (
        f"{_span(where)} of {name}: embeddings point the same way, with a mean cosine of up to "
        f"{layers[worst].mean_cosine:.3f} (layer {worst}): nearest neighbours are unreliable: "
        "use cka, which removes the common direction"
    )


def _half_precision(measure: Measure, name: str, layers: Layers) -> str | None:
    where = [i for i, layer in layers.items() if layer.dtype in HALF_PRECISION]
    if not where:
        return None
    dtypes = " and ".join(sorted({layers[i].dtype for i in where}))
    return (
        f"{_span(where)} of {name}: embeddings are in {dtypes}, with at most three digits: similar texts become "
        "copies and similarities change in the third decimal: extract again in float32"
    )


CHECKS: tuple[Callable[[Measure, str, Layers], str | None], ...] = (
    _copies,
    _outliers,
    _constant_features,
    _anisotropy,
    _half_precision,
)


def _span(layers: Sequence[int]) -> str:
    """Return ascending layers as runs.

    Examples:
        >>> _span([3]), _span([9, 10, 11, 12]), _span([0, 3, 4, 9])
        ('layer 3', 'layers 9 to 12', 'layers 0, 3, 4 and 9')
    """
    runs = []
    for _, run in itertools.groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        members = [str(layer) for _, layer in run]
        runs += [f"{members[0]} to {members[-1]}"] if len(members) > 2 else members
    *first, last = runs
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(first)}{' and ' if first else ''}{last}"
