"""What the layers of each model are like alone: why a similarity may be unlike what it seems."""

from collections.abc import Iterable, Sequence

from layerprobe.comparison.values import Comparison
from layerprobe.report import words
from layerprobe.results import numbers
from layerprobe.results.glossary import terms
from layerprobe.results.markup import Markup
from layerprobe.results.parts import Row, definitions, folded, section, table
from layerprobe.results.values import Section
from layerprobe.similarity.values import Diagnosed, LayerDiagnostics
from layerprobe.study.values import Study

TERMS = ("Copies", "Mean cosine", "Top feature, top three", "Effective rank", "Intrinsic dimension", "Chance CKA")


def diagnostics(study: Study) -> Section:
    """Return a table for every model that was diagnosed; nothing where there is none."""
    return of_models(_diagnosed(study))


def of_models(models: Sequence[tuple[Diagnosed, int]]) -> Section:
    """Return a table for every model that was diagnosed, with its name and its first layer that is not left out."""
    heading = "Diagnostics of the layers"
    folds = [_model(name, layers, first) for (name, layers), first in models if layers]
    if not folds:
        return section("diagnostics", heading)
    intro = "What each layer is like by itself, and what a similarity can suffer from."
    return section("diagnostics", heading, intro, *folds, definitions(terms(*TERMS)))


def _diagnosed(study: Study) -> list[tuple[Diagnosed, int]]:
    model, comparisons = words.names(study)[0], (study.comparison, *study.further_comparisons)
    references = [] if study.comparison.alone else zip(words.reference_labels(study), comparisons, strict=True)
    return diagnosed(model, study.comparison, references)


def diagnosed(
    model: str, comparison: Comparison, references: Iterable[tuple[str, Comparison]]
) -> list[tuple[Diagnosed, int]]:
    """Return the layers of a model and of references by name, with the first layer of each that is not left out."""
    return [
        ((model, comparison.model_diagnostics), comparison.first_layer),
        *(((name, each.reference_diagnostics), each.map.first_layers[1]) for name, each in references),
    ]


def _model(name: str, layers: tuple[LayerDiagnostics, ...], first: int) -> Markup:
    rows = (_cells(index, layer) for index, layer in enumerate(layers) if index >= first)
    return folded(f"Layers of {name}", table(f"Diagnostics of {name}", rows))


def _cells(index: int, layer: LayerDiagnostics) -> Row:
    dimension = layer.intrinsic_dimension
    return (
        ("Layer", str(index)),
        ("Texts", str(layer.n_samples)),
        ("Features", str(layer.n_features)),
        ("Copies", str(layer.duplicates)),
        ("Mean cosine", numbers.number(layer.mean_cosine, 3)),
        ("Top feature", numbers.percent(layer.top_dimension_share)),
        ("Top three", numbers.percent(layer.top_three_share)),
        ("Effective rank", numbers.number(layer.effective_rank, 1)),
        ("Intrinsic dimension", "–" if dimension is None else numbers.number(dimension, 1)),
        ("Chance CKA", numbers.number(layer.chance_cka, 3)),
    )
