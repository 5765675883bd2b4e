"""What a reader of similarities should know, in plain words. Knows diagnostics and measures; knows no arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from layerprobe.similarity.values import NEIGHBOUR_MEASURES, Alignment, LayerDiagnostics, Measure

Diagnosed: TypeAlias = tuple[str, tuple[LayerDiagnostics, ...]]
"""A model's name and its layers."""

CHANCE = 0.05
"""Similarity of independent layers that is told: more than the intervals of 100 texts hide."""

COPIES = 0.01
"""Share of rows that are copies that is told: one text in a hundred no longer counts once."""

INFLATION = 0.01
"""Debiased CKA that copies alone give independent layers that is told: the second decimal is no longer right."""

FEW_SAMPLES = 100
"""Below, an interval of CKA is wider than +- 0.07: more than neighbouring layers of most encoders differ by."""

SPREAD = 0.35
"""Standard error of debiased CKA x sqrt(n): 0.25 to 0.31 between layers of MiniLM on STS-B, 0.38 of Gaussian layers."""

OUTLIER_WEIGHT = 0.25
"""Share of HSIC(K, K) in one or three features: layers alike in these alone have a linear CKA of at least this."""

OUTLIER_RATIO = 5
"""An outlier varies at least this times the average feature: in narrow models every feature weighs much."""

ANISOTROPY = 0.9
"""Mean cosine above which the common direction takes nine tenths of every cosine, the texts the rest."""

LEFT_OUT = 0.1
"""Share of features without variance that is told: a few are dead in healthy models, 3 of 384 in MiniLM."""

QUARTER_CIRCLE = 8 / (3 * math.pi)
"""Mean over root mean square of the singular values of a large random matrix."""

HALF_PRECISION = ("float16", "bfloat16")
"""Three and two digits: the difference of texts that point the same way has fewer."""

CCA_MEASURES = ("svcca", "pwcca")
"""Blind to the scale of features, so that every direction of noise counts as much as any other."""

MANY_TO_CHOOSE = 1000
"""Below, the largest debiased CKA of 13 that differ by chance alone is too high in the second decimal: simulated layers
with a CKA of 0, 0.5 and 0.8 gave 0.025, 0.024 and 0.011 too much on 100 texts, 0.005, 0.009 and 0.004 on 500, 0.002,
0.006 and 0.003 on 1000. In standard errors it does not fade: whatever n, 15 to 35 % of 95 % intervals lie above the
truth."""

FEW_DOCUMENTS = 100
"""Below, pairs within documents raise debiased CKA visibly: 20 documents of 10 sentences showed 0.62 for 0.50."""


def cautions(
    measure: Measure,
    n_samples: int,
    model: Diagnosed,
    reference: Diagnosed,
    *,
    n_clusters: int | None = None,
    alignment: Alignment | None = None,
) -> tuple[str, ...]:
    """Return what makes similarities of these layers unlike what they seem, one line a cause and model.

    Independent layers have a mean biased linear CKA of sqrt(a b), a and b their chance CKAs, and share
    k / (n - 1) of k neighbours. By m copies among n rows, independent layers of chance CKA c get a debiased linear
    CKA of about x / (1 + x), x = 2 m / n x c / (1 - c). With variance shares v of features and
    |K|^2 = tr(K)^2 / ((n - 1) c), a feature's part of HSIC(K, K) is at least v^2 (n - 1) c. Independent layers of d
    and e features have a mean squared canonical correlation of max(d, e) / (n - 1), and of effective rank r a
    Procrustes similarity of 0.85 sqrt(r / (n - 1)) or more.

    Args:
        measure: What was or will be computed.
        n_samples: Rows that are compared.
        model: Its name and what `diagnose` found, by layer.
        reference: The same of the reference.
        n_clusters: Documents that intervals take as units; None where texts are.
        alignment: Of the curve, where there is one.

    Returns:
        Sentences without a line break that say where, what, why it matters and what to do; none where nothing is
        wrong.

    Source: Josse and Holmes 2016 (arXiv 1307.7383) for the mean of biased CKA; copies: by the mean of the
    inner products of copies, to first order, and confirmed by simulation.

    Example:
        >>> layer = LayerDiagnostics(
        ...     n_samples=2758, n_features=768, dtype="float32", norm="none", duplicates=0, constant_features=0,
        ...     mean_norm=1.0, mean_cosine=0.3, top_dimension_share=0.01, top_three_share=0.03,
        ...     effective_rank=670.0, intrinsic_dimension=20.0, chance_cka=0.22,
        ... )
        >>> cautions(Measure(), 2758, ("electra", (layer,)), ("bert", (layer,)))
        ()
        >>> cautions(Measure(estimator="biased"), 2758, ("electra", (layer,)), ("bert", (layer,)))[0][:74]
        'layer 0 of electra and layer 0 of bert: independent layers with these spec'
    """
    found = [
        _few_samples(measure, n_samples),
        _few_documents(n_clusters),
        _best_match(alignment, n_samples, reference),
        _chance(measure, n_samples, model, reference),
    ]
    for name, layers in (model, reference):
        found += [check(measure, name, layers) for check in CHECKS]
    return tuple(dict.fromkeys(line for line in found if line))


def _few_samples(measure: Measure, n: int) -> str | None:
    if n >= FEW_SAMPLES:
        return None
    wide = f"debiased CKA has 95% intervals of about ± {2 * SPREAD / math.sqrt(n):.2f}, more than layers differ by"
    why = wide if measure.estimator == "debiased" else "another sample of texts would give other similarities"
    return f"{n} texts are few: {why}: compare on {FEW_SAMPLES} texts or more, better 1000"


def _few_documents(n: int | None) -> str | None:
    if n is None or n >= FEW_DOCUMENTS:
        return None
    return (
        f"{n} documents are few: texts of one document are alike in every layer, which raises similarities as copies "
        f"do, more than the intervals allow for: compare on texts of {FEW_DOCUMENTS} documents or more"
    )


def _best_match(alignment: Alignment | None, n: int, reference: Diagnosed) -> str | None:
    if alignment != "best-match" or n >= MANY_TO_CHOOSE or len(reference[1]) == 1:
        return None
    return (
        f"best-match takes the largest of several values, which with {n} texts may be largest by chance and is then "
        "too high, and the intervals take the choice for given: compare by same-index or relative-depth, or on "
        f"{MANY_TO_CHOOSE} texts or more"
    )


def _chance(measure: Measure, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
    """Tell the similarity of independent layers where it is far from 0."""
    if not model[1] or not reference[1]:
        return None
    if measure.estimator == "biased":
        return _chance_cka(measure, model, reference)
    if measure.name == "mutual-knn":
        return _chance_neighbours(measure, n)
    if measure.name == "procrustes":
        return _chance_overlap(n, model, reference)
    if measure.name in CCA_MEASURES:
        return _chance_correlation(measure, n, (model, reference))
    return None


def _chance_cka(measure: Measure, model: Diagnosed, reference: Diagnosed) -> str | None:
    first, second = (max(layers, key=lambda layer: layer.chance_cka) for _, layers in (model, reference))
    chance = math.sqrt(first.chance_cka * second.chance_cka)
    if chance <= CHANCE:
        return None
    where = " and ".join(
        f"layer {layers.index(layer)} of {name}" for (name, layers), layer in ((model, first), (reference, second))
    )
    # Both flatten the spectrum, which raises the level.
    more = " or more" if measure.normalize == "zscore" or measure.kernel == "rbf" else ""
    return (
        f"{where}: independent layers with these spectra would show a biased CKA of {chance:.2f}{more}, which lies "
        "under every value: compare with --estimator debiased, or on more texts"
    )


def _chance_neighbours(measure: Measure, n: int) -> str | None:
    assert measure.neighbours is not None
    chance = min(measure.neighbours / (n - 1), 1.0)
    if chance <= CHANCE:
        return None
    return (
        f"{measure.neighbours} neighbours among {n} texts are many: independent layers would share {chance:.0%} of "
        "them: compare with fewer neighbours, or on more texts"
    )


def _chance_overlap(n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
    """Tell the mean sum of singular values of X^T Y for independent layers.

    Their squares sum to 1 / (n - 1) on average; of r values that fill a quarter circle, the sum is then
    8 / (3 pi) sqrt(r / (n - 1)). With r the effective rank this is 1 to 25 % too low.
    """
    rank = min(max(layer.effective_rank for layer in layers) for _, layers in (model, reference))
    chance = QUARTER_CIRCLE * math.sqrt(rank / (n - 1))
    if chance <= CHANCE:
        return None
    return (
        f"{model[0]} and {reference[0]} have layers of effective rank {rank:.0f} or more: on {n} "
        f"texts independent ones would show a Procrustes similarity of {chance:.2f} or more: compare by cka, or "
        "against texts in another order"
    )


def _chance_correlation(measure: Measure, n: int, models: tuple[Diagnosed, Diagnosed]) -> str | None:
    """Tell the mean squared canonical correlation of independent layers, max(d, e) / (n - 1)."""
    width, name = max((layer.n_features, name) for name, layers in models for layer in layers)
    chance = width / (n - 1)
    if chance <= CHANCE:
        return None
    start = f"{name} has {width} features on {n} texts: "
    wanted = f"compare by cka, or on {math.ceil(width / CHANCE)} texts or more"
    if n <= width:
        return f"{start}any two layers of full rank then correlate fully, so {measure.title} is meaningless: {wanted}"
    return (
        f"{start}independent layers would show canonical correlations of up to about {math.sqrt(chance):.2f}: {wanted}"
    )


def _copies(measure: Measure, name: str, layers: Sequence[LayerDiagnostics]) -> str | None:
    where = [i for i, layer in enumerate(layers) if _share(layer) > COPIES or _inflation(layer) > INFLATION]
    if not where:
        return None
    worst = max(where, key=lambda i: layers[i].duplicates)
    return (
        f"{_span(where)} of {name}: up to {layers[worst].duplicates} of {layers[worst].n_samples} texts (layer "
        f"{worst}) have the embedding of an earlier text: copies match in both models, which inflates similarity: "
        "remove repeated texts, also those that differ only in case, spaces or what is cut off"
    )


def _share(layer: LayerDiagnostics) -> float:
    return layer.duplicates / layer.n_samples


def _inflation(layer: LayerDiagnostics) -> float:
    """Return the debiased CKA of independent layers like this that its copies give."""
    odds = layer.chance_cka / max(1 - layer.chance_cka, 1 / layer.n_samples)
    matched = 2 * _share(layer) * odds
    return matched / (1 + matched)


def _outliers(measure: Measure, name: str, layers: Sequence[LayerDiagnostics]) -> str | None:
    if measure.normalize != "raw" or measure.name == "pwcca":
        return None
    counts = {i: count for i, layer in enumerate(layers) if (count := _outlying(layer))}
    if not counts:
        return None
    worst = max(counts, key=lambda i: _weight(layers[i], counts[i]))
    layer, count = layers[worst], counts[worst]
    held = f"one of {layer.n_features} features holds" if count == 1 else f"three of {layer.n_features} features hold"
    share = layer.top_dimension_share if count == 1 else layer.top_three_share
    return (
        f"{_span(list(counts))} of {name}: {held} {share:.0%} of the variance (layer {worst}) and at least "
        f"{_weight(layer, count):.0%} of its HSIC: similarity follows outlier features and hides the others: "
        "compare with --normalize zscore"
    )


def _outlying(layer: LayerDiagnostics) -> int:
    """Return how many features decide over a layer: 1, 3, or 0 where many do."""
    for count, share in ((1, layer.top_dimension_share), (3, layer.top_three_share)):
        if share > OUTLIER_RATIO * count / layer.n_features and _weight(layer, count) > OUTLIER_WEIGHT:
            return count
    return 0


def _weight(layer: LayerDiagnostics, count: int) -> float:
    """Return the least that the first 1 or 3 features can contribute to HSIC(K, K), as a share.

    The entries of the covariance at these features, squared; the second and third are least where they are equal.
    """
    squares = layer.top_dimension_share**2
    if count == 3:
        squares += (layer.top_three_share - layer.top_dimension_share) ** 2 / 2
    return squares * (layer.n_samples - 1) * layer.chance_cka


def _constant_features(measure: Measure, name: str, layers: Sequence[LayerDiagnostics]) -> str | None:
    where = [i for i, layer in enumerate(layers) if layer.constant_features > LEFT_OUT * layer.n_features]
    if measure.normalize != "zscore" or not where:
        return None
    worst = max(where, key=lambda i: layers[i].constant_features)
    return (
        f"{_span(where)} of {name}: up to {layers[worst].constant_features} of {layers[worst].n_features} features "
        f"(layer {worst}) are the same for all texts and have no z-score: the similarity is that of the others: "
        "check pooling and model, or compare with --normalize raw"
    )


def _anisotropy(measure: Measure, name: str, layers: Sequence[LayerDiagnostics]) -> str | None:
    where = [i for i, layer in enumerate(layers) if layer.mean_cosine > ANISOTROPY]
    if measure.name not in NEIGHBOUR_MEASURES or not where:
        return None
    worst = max(where, key=lambda i: layers[i].mean_cosine)
    return (
        f"{_span(where)} of {name}: embeddings point the same way, with a mean cosine of up to "
        f"{layers[worst].mean_cosine:.3f} (layer {worst}): neighbours by cosine then rest on what little is left: "
        "compare by cka, which takes the common direction out"
    )


def _half_precision(measure: Measure, name: str, layers: Sequence[LayerDiagnostics]) -> str | None:
    where = [i for i, layer in enumerate(layers) if layer.dtype in HALF_PRECISION]
    if not where:
        return None
    dtypes = " and ".join(sorted({layers[i].dtype for i in where}))
    return (
        f"{_span(where)} of {name}: embeddings are in {dtypes}, which has three digits or fewer: similar texts become "
        "copies and similarities change in the third decimal: extract again in float32"
    )


CHECKS: tuple[Callable[[Measure, str, Sequence[LayerDiagnostics]], str | None], ...] = (
    _copies,
    _outliers,
    _constant_features,
    _anisotropy,
    _half_precision,
)


def _span(layers: Sequence[int]) -> str:
    """Return ascending layers as runs.

    Example:
        >>> _span([3]), _span([9, 10, 11, 12]), _span([0, 3, 4, 9])
        ('layer 3', 'layers 9 to 12', 'layers 0, 3, 4 and 9')
    """
    runs = []
    for _, run in itertools.groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        members = [str(layer) for _, layer in run]
        runs += [f"{members[0]} to {members[-1]}"] if len(members) > 2 else members
    *first, last = runs
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(first)}{' and ' if first else ''}{last}"
