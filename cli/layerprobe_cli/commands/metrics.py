"""layerprobe metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe_cli.options import Extraction, Model, TextSource
from layerprobe_cli.output import Output, print_table

if TYPE_CHECKING:
    from layerprobe.readings.values import LabelFreeMetrics


def metrics(
    model: Model,
    source: TextSource,
    extraction: Extraction,
    output: Output,
    views: Annotated[int, typer.Option(min=2, help="Altered copies of a text, for InfoNCE, LiDAR and DiME.")] = 4,
    view_texts: Annotated[int, typer.Option(min=2, help="Texts that are altered, at most.")] = 512,
    dropped: Annotated[float, typer.Option(help="Share of the words that a copy lacks, between 0 and 1.")] = 0.2,
) -> None:
    """Say what each layer is like, without labels.

    Entropies, curvature, and what altered copies of a text keep. Prompt entropy, dataset entropy, InfoNCE and DiME
    are in nats, curvature in radians, LiDAR is a rank. Copies lack words at random. Source: Skean et al. 2025
    (arXiv 2502.02013); numbers differ from those of their code, which centres the tokens of a text, scales entropies
    and gives InfoNCE as a loss: `layerprobe.similarity.label_free` says how.

    Example:  [bold]layerprobe metrics google-bert/bert-base-cased --texts sentences.txt[/bold]
    """
    from layerprobe.readings.values import Views

    made = Views(n_texts=view_texts, n_views=views, dropped=dropped)
    data = source.load_texts()

    # only now: an error in the data needs no torch
    from layerprobe.readings.views import label_free_metrics

    with output.progress() as progress:
        found = label_free_metrics(
            extraction.resolve(model),
            data.texts,
            views=made,
            options=extraction.options(),
            progress=progress,
        )
    output.notes(data.notes, data.warnings)
    output.result(found, _print_metrics)


def _print_metrics(found: LabelFreeMetrics) -> None:
    columns = found.by_name
    rows = [[f"{value:.3f}" for value in each] for each in zip(*columns.values(), strict=True)]
    print_table(("layer", *columns), [(str(layer), *cells) for layer, cells in enumerate(rows)])
