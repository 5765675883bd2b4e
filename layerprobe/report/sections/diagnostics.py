"""What the layers of each model are like alone: why a similarity may be unlike what it seems."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from layerprobe.comparison.values import Comparison
from layerprobe.report import words
from layerprobe.results import numbers
from layerprobe.results.glossary import terms
from layerprobe.results.markup import Markup
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.table import Column, Table
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
    intro = "Properties of each layer, and what can distort its similarity."
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
    shown = replace(diagnostics_table(layers, first), title=f"Diagnostics of {name}")
    return folded(f"Layers of {name}", table_of(shown))


def diagnostics_table(layers: Sequence[LayerDiagnostics], first: int = 0) -> Table:
    """Return what each layer from the first one on is like by itself, one row per layer."""
    own, share = layers[first:], numbers.percent
    return Table(
        columns=(
            Column("layer", range(first, len(layers))),
            Column("texts", [layer.n_samples for layer in own]),
            Column("features", [layer.n_features for layer in own]),
            Column("copies", [layer.duplicates for layer in own]),
            Column("mean_cosine", [layer.mean_cosine for layer in own], form=".3f"),
            Column("top_feature", [layer.top_dimension_share for layer in own], form=share),
            Column("top_three", [layer.top_three_share for layer in own], form=share),
            Column("effective_rank", [layer.effective_rank for layer in own], form=".1f"),
            Column("intrinsic_dimension", [layer.intrinsic_dimension for layer in own], form=".1f"),
            Column("chance_cka", [layer.chance_cka for layer in own], "chance CKA", ".3f"),
        )
    )
