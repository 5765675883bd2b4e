"""layerprobe metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    Json,
    Loading,
    Model,
    Quiet,
    TextSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, print_table, progress_bar
from layerprobe_cli.tables import show_notes

if TYPE_CHECKING:
    from layerprobe.readings.values import LabelFreeMetrics


def metrics(
    model: Model,
    source: TextSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    views: Annotated[int, typer.Option(min=2, help="Altered copies of a text, for InfoNCE, LiDAR and DiME.")] = 4,
    view_texts: Annotated[int, typer.Option(min=2, help="Texts that are altered, at most.")] = 512,
    dropped: Annotated[float, typer.Option(help="Share of the words that a copy lacks, between 0 and 1.")] = 0.2,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what each layer is like, without labels.

    Entropies, curvature, and what altered copies of a text keep. Prompt entropy, dataset entropy, InfoNCE and DiME
    are in nats, curvature in radians, LiDAR is a rank. Copies lack words at random. Source: Skean et al. 2025
    (arXiv 2502.02013); numbers differ from those of their code, which centres the tokens of a text, scales entropies
    and gives InfoNCE as a loss: `layerprobe.similarity.label_free` says how.

    Example:  [bold]layerprobe metrics google-bert/bert-base-cased --texts sentences.txt[/bold]
    """
    log_to_stderr(quiet=quiet)
    from layerprobe.readings.values import Views

    made = Views(n_texts=view_texts, n_views=views, dropped=dropped)
    data = source.load_texts()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.readings.views import label_free_metrics

    with progress_bar(quiet=quiet) as progress:
        found = label_free_metrics(
            loading.find(model, random_init=loading.random_init),
            data.texts,
            views=made,
            options=library_options(loading, embedding, extraction, cache_dir=cache_dir),
            progress=progress,
        )
    show_notes(data.notes, data.warnings, quiet=quiet)
    if json:
        print_json(found)
    else:
        _print_metrics(found)


def _print_metrics(found: LabelFreeMetrics) -> None:
    columns = found.by_name
    rows = [[f"{value:.3f}" for value in each] for each in zip(*columns.values(), strict=True)]
    print_table(("layer", *columns), [(str(layer), *cells) for layer, cells in enumerate(rows)])
