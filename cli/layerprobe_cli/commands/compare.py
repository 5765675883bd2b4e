"""layerprobe compare."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    Json,
    Loading,
    Model,
    Quiet,
    ReferenceRandomInit,
    Similarity,
    TextSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, print_table, progress_bar
from layerprobe_cli.tables import show_notes


def compare(
    model: Model,
    reference: Annotated[str, typer.Argument(help="The model to compare with.", show_default=False)],
    source: TextSource,
    similarity: Similarity,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    reference_random_init: ReferenceRandomInit = None,
    show_map: Annotated[bool, typer.Option("--map", help="Print every layer against every layer.")] = False,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare two models layer by layer by CKA on the same texts.

    Example:  [bold]layerprobe compare google/electra-base-discriminator google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    settings = similarity.settings()
    data = source.load_texts()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.study import compare as compare_models
    from layerprobe.study import extract

    options = library_options(loading, embedding, extraction, cache_dir=cache_dir)
    with progress_bar(quiet=quiet) as progress:
        tested = extract(
            loading.find(model, random_init=loading.random_init), data.texts, options=options, progress=progress
        )
        base = extract(
            loading.find(reference, random_init=reference_random_init), data.texts, options=options, progress=progress
        )
        found = compare_models(tested, base, progress=progress, **settings)
    show_notes(data.notes, (*data.warnings, *tested.warnings, *base.warnings), quiet=quiet)
    if json:
        print_json(found)
    elif show_map:
        header = ("layer", *(str(layer) for layer in range(found.reference.n_layers)))
        print_table(header, [(str(i), *(f"{value:.4f}" for value in row)) for i, row in enumerate(found.cka.values)])
    else:
        rows = zip(found.curve.reference_layers, found.curve.values, strict=True)
        print_table(
            ("layer", "reference layer", "CKA"),
            [(str(layer), str(other), f"{value:.4f}") for layer, (other, value) in enumerate(rows)],
        )
