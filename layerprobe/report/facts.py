"""Facts about models that many pages share. Knows Markup and numbers, no result."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from layerprobe.encoders.model import ModelDescription
from layerprobe.names import short_name
from layerprobe.results import numbers
from layerprobe.results.parts import facts_table, folded, section, table_of
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Part, Section
from layerprobe.similarity.values import LayerDiagnostics


def about(model: str, task: str = "") -> str:
    """Return the model and the task of a result, as text."""
    return " on ".join(filter(None, (model and numbers.label(short_name(model)), task and short_name(task))))


def size_facts(parameters: tuple[int, ...], layer: int) -> tuple[str, ...]:
    """Return how large a truncated model is, and how much smaller than the whole one."""
    remaining, whole = parameters[layer], parameters[-1]
    fewer = "" if remaining == whole else f", {numbers.percent(round(1 - remaining / whole, 2))} fewer"
    return (f"{numbers.millions(remaining)} parameters{fewer}",)


def model_facts(model: ModelDescription) -> dict[str, str]:
    """Return the facts of a model by name."""
    norm = {
        "none": "post-norm, nothing added",
        "final": "final norm applied at every layer",
        "raw": "final norm left out",
    }[model.norm]
    return {
        "Name": model.name,
        "Revision": model.revision,
        "Architecture": model.architecture,
        "Blocks": str(model.n_blocks),
        "Hidden size": str(model.hidden_size),
        "Parameters": numbers.millions(model.parameters[-1]),
        "Norm": norm,
        "Precision": model.dtype,
    }


def models(*described: ModelDescription | None) -> tuple[Part, ...]:
    """Return the facts of models side by side, skipping those that are None."""
    present = [model for model in described if model is not None]
    names = [f"Model {number}" for number in range(1, len(present) + 1)] if len(present) > 1 else ["Model"]
    return (facts_table("Models", names, list(map(model_facts, present))),) if present else ()


def diagnostics(models: Iterable[tuple[str, Sequence[LayerDiagnostics], range]]) -> Section:
    """Return a table of layer diagnostics for each model, without those that are left out."""
    folds = [
        folded(f"Layers of {name}", table_of(replace(diagnostics_table(rows, layers), title=f"Diagnostics of {name}")))
        for name, diagnosed, layers in models
        if (rows := [diagnosed[layer] for layer in layers if diagnosed])
    ]
    intro = ("Properties of each layer, and what can distort its similarity.",) if folds else ()
    return section("diagnostics", "Diagnostics of the layers", *intro, *folds)


def diagnostics_table(diagnosed: Sequence[LayerDiagnostics], layers: Sequence[int]) -> Table:
    """Return the diagnostics of some layers, one row per layer."""
    share = numbers.percent
    return Table(
        columns=(
            Column("layer", layers),
            Column("texts", [layer.n_samples for layer in diagnosed]),
            Column("features", [layer.n_features for layer in diagnosed]),
            Column("copies", [layer.duplicates for layer in diagnosed]),
            Column("mean_cosine", [layer.mean_cosine for layer in diagnosed], form=".3f"),
            Column("top_feature", [layer.top_dimension_share for layer in diagnosed], form=share),
            Column("top_three", [layer.top_three_share for layer in diagnosed], form=share),
            Column("effective_rank", [layer.effective_rank for layer in diagnosed], form=".1f"),
            Column("intrinsic_dimension", [layer.intrinsic_dimension for layer in diagnosed], form=".1f"),
            Column("chance_cka", [layer.chance_cka for layer in diagnosed], "chance CKA", ".3f"),
        )
    )
