"""layerprobe compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    AnySimilarity,
    CacheDir,
    Embedding,
    Extraction,
    IntervalLevel,
    Json,
    Loading,
    Quiet,
    ReferenceRandomInit,
    TextSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_comparisons, print_maps, show_notes


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [OTHER]...",
            help="A model, and those to compare it with. A model alone is compared with itself: each layer with the "
            "one before.",
            show_default=False,
        ),
    ],
    source: TextSource,
    similarity: AnySimilarity,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    reference_random_init: ReferenceRandomInit = None,
    level: IntervalLevel = LEVEL,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals/--no-intervals",
            help="Intervals and tests, or values alone in less time and memory.",
            rich_help_panel="Comparison",
        ),
    ] = True,
    permutations: Annotated[
        int,
        typer.Option(
            min=0, help="Shuffles of the texts for p-values and calibrated scores.", rich_help_panel="Comparison"
        ),
    ] = 0,
    show_map: Annotated[bool, typer.Option("--map", help="Print every layer against every layer.")] = False,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Also write every pair of layers to this Parquet file.", show_default=False),
    ] = None,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare models layer by layer, by CKA or another measure.

    All are compared on the same texts. Prints one value a layer with its interval; where there are several others,
    also how their values differ.

    Example:  [bold]layerprobe compare google/electra-base-discriminator google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    settings = similarity.settings()
    if show_map and json:
        raise typer.BadParameter("expected --map or --json, got both: the JSON has the map")
    if permutations:
        from layerprobe.similarity.permutation import check_permutations

        check_permutations(permutations, settings["measure"], level=level, documents=source.documents is not None)
    if parquet is not None and not parquet.absolute().parent.is_dir():
        raise typer.BadParameter(f"expected a folder that exists for --parquet, got {parquet}")
    data = source.load_texts()

    # after the data: what is wrong with it is reported before torch is loaded
    from layerprobe.comparison.compare import compare_all
    from layerprobe.extraction.embeddings import extract

    options = library_options(loading, embedding, extraction, cache_dir=cache_dir)
    model, *others = models
    if not others and reference_random_init is not None:
        others = [model]
    if not others:
        settings["alignment"] = settings["alignment"] or "previous-layer"
    seeds = [reference_random_init, *[None] * (len(others) - 1)]
    checkpoints = [loading.find(name, random_init=seed) for name, seed in zip(others, seeds, strict=False)]
    with progress_bar(quiet=quiet) as progress:
        tested = extract(
            loading.find(model, random_init=loading.random_init), data.texts, options=options, progress=progress
        )
        bases = [extract(each, data.texts, options=options, progress=progress) for each in checkpoints]
        comparisons = compare_all(
            tested,
            bases or [tested],
            level=level if intervals else None,
            documents=data.documents,
            permutations=permutations,
            device=loading.device,
            progress=progress,
            **settings,
        )
    warnings = [warning for embeddings in (tested, *bases) for warning in embeddings.warnings]
    warnings += [warning for comparison in comparisons.comparisons for warning in comparison.warnings]
    show_notes(data.notes, (*data.warnings, *warnings), quiet=quiet)
    if parquet is not None:
        from layerprobe.comparison.parquet import write_parquet

        write_parquet(comparisons, parquet)
    if json:
        print_json(comparisons)
    elif show_map:
        print_maps(comparisons)
    else:
        print_comparisons(comparisons)
