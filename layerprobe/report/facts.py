"""Facts about models that many pages share. Knows Markup and numbers, no result."""

from collections.abc import Iterable, Sequence

from layerprobe.encoders.model import ModelDescription
from layerprobe.names import short_name
from layerprobe.results import numbers
from layerprobe.results.parts import facts_table, folded, section, table_of
from layerprobe.results.table import Column, Table, columns_of
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
    folds = []
    for name, diagnosed, layers in models:
        if not diagnosed:
            continue
        column = columns_of(diagnosed[layer] for layer in layers)
        columns = (
            Column("layer", layers),
            column("texts", lambda layer: layer.n_samples),
            column("features", lambda layer: layer.n_features),
            column("copies", lambda layer: layer.duplicates),
            column("mean_cosine", form=".3f"),
            column("top_feature", lambda layer: layer.top_dimension_share, form=numbers.percent),
            column("top_three", lambda layer: layer.top_three_share, form=numbers.percent),
            column("effective_rank", form=".1f"),
            column("intrinsic_dimension", form=".1f"),
            column("chance_cka", title="chance CKA", form=".3f"),
        )
        table = Table(columns=columns, title=f"Diagnostics of {name}")
        folds.append(folded(f"Layers of {name}", table_of(table)))
    intro = ("Properties of each layer, and what can distort its similarity.",) if folds else ()
    return section("diagnostics", "Diagnostics of the layers", *intro, *folds)
