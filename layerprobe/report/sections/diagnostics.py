"""What the layers of each model are like alone: why a similarity may be unlike what it seems."""

from __future__ import annotations

from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.parts import definitions, folded, row, section, table
from layerprobe.report import words
from layerprobe.similarity.values import LayerDiagnostics
from layerprobe.study.values import Study

HEAD = (
    "Layer",
    "Texts",
    "Features",
    "Copies",
    "Mean cosine",
    "Top feature",
    "Top three",
    "Effective rank",
    "Intrinsic dimension",
    "Chance CKA",
)

MEANINGS = {
    "Copies": "Rows that are equal to an earlier row; they match in every model and raise similarity.",
    "Mean cosine": "Of two different texts. Near 1 all embeddings point the same way; CKA takes that direction out,"
    " cosines do not.",
    "Top feature, top three": "Share of the variance in the features that vary most. Where it is large, they decide a"
    " raw linear CKA; compare the z-scored map.",
    "Effective rank": "How many directions the variance is spread over, at most one less than the texts and no more"
    " than the features.",
    "Intrinsic dimension": "How fast neighbours move away (TwoNN). Where texts come in pairs of paraphrases, as in STS"
    " data, the nearest neighbour is the other text of the pair, and the number tells of the pairs rather than of the"
    " layer.",
    "Chance CKA": "Biased linear CKA of unrelated layers with this spectrum. The debiased estimator takes it off.",
}


def diagnostics(study: Study) -> Markup | None:
    """Return a table for every model that was diagnosed; None where there is none."""
    folds = [_model(name, layers) for name, layers in _diagnosed(study) if layers]
    if not folds:
        return None
    intro = element("p", "What each layer is like by itself, and what a similarity can suffer from.")
    return section("diagnostics", "Diagnostics of the layers", intro, join(*folds), definitions(MEANINGS))


def _diagnosed(study: Study) -> list[tuple[str, tuple[LayerDiagnostics, ...]]]:
    model, comparisons = words.names(study)[0], (study.comparison, *study.further_comparisons)
    references = [] if study.comparison.alone else zip(words.reference_labels(study), comparisons, strict=True)
    return [
        (model, study.comparison.model_diagnostics),
        *((name, comparison.reference_diagnostics) for name, comparison in references),
    ]


def _model(name: str, layers: tuple[LayerDiagnostics, ...]) -> Markup:
    rows = (_layer_line(index, layer) for index, layer in enumerate(layers))
    return folded(f"Layers of {name}", table(f"Diagnostics of {name}", HEAD, rows))


def _layer_line(index: int, layer: LayerDiagnostics) -> Markup:
    dimension = layer.intrinsic_dimension
    cells = (
        str(layer.n_samples),
        str(layer.n_features),
        str(layer.duplicates),
        numbers.number(layer.mean_cosine, 3),
        numbers.percent(layer.top_dimension_share),
        numbers.percent(layer.top_three_share),
        numbers.number(layer.effective_rank, 1),
        "–" if dimension is None else numbers.number(dimension, 1),
        numbers.number(layer.chance_cka, 3),
    )
    return row(str(index), cells)
