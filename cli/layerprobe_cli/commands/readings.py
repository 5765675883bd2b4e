"""layerprobe readings."""

from typing import Annotated

from layerprobe.readings.registry import READINGS, alone, curves_table
from layerprobe.readings.values import Views
from layerprobe.tasks.values import Task
from layerprobe_cli import options as o
from layerprobe_cli.completion import names_of
from layerprobe_cli.derive import group, usage
from layerprobe_cli.shell import Done, PageCall


def readings(
    call: PageCall,
    model: o.Extraction,
    source: o.TextSource,
    views: Annotated[
        Views,
        group(
            Views,
            "Options",
            "n_views n_texts dropped",
            n_views={"flags": ("--views",)},
            n_texts={"flags": ("--view-texts",)},
        ),
    ],
    reading: Annotated[
        list[str] | None, {"metavar": "NAME", "autocompletion": names_of("layerprobe.readings.registry:READINGS")}
    ] = None,
) -> Done:
    """Print the numbers by layer that rules can read.

    InfoNCE, LiDAR and DiME compare copies of a text that lack words at random. They and the entropies are of Skean et
    al. 2025 (arXiv 2502.02013); `layerprobe.similarity.label_free` says how the numbers differ from those of their
    code. --json has the errors, too.

    Example:  [bold]layerprobe readings google-bert/bert-base-cased --texts sentences.txt[/bold]

    Args:
        reading: What to read of each layer; can be given again: {readings}. What needs labels needs -t. By default all
            that need no labels.
    """
    for name in reading or ():
        usage(READINGS.check, name)
    data = source.load()

    from layerprobe.extraction.embeddings import left_out_layers
    from layerprobe.readings.source import layers_read, read_curves

    (checkpoint,) = o.resolved(model)
    curves = read_curves(
        checkpoint,
        source.items(data),
        reading or alone(),
        task=data if isinstance(data, Task) else None,
        groups=source.group_of(data),
        views=views,
    )
    left_out = [f"{name} is left out: it is not defined here" for name in reading or () if name not in curves]
    if curves:
        left_out += left_out_layers(checkpoint.label, checkpoint.pooling, *layers_read(curves))
    return Done(
        result=curves,
        parts=[curves_table(curves)],
        as_json={"views": views, "readings": curves},
        notes=data.notes,
        warnings=(*data.warnings, *left_out),
        page={"model": model.name, "page": "readings"},
    )
