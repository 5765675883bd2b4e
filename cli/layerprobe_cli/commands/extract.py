"""layerprobe extract."""

import functools
from typing import Annotated

import typer

from layerprobe.results.table import named_values
from layerprobe_cli.options import Extraction, Model, Ray, TextSource, Workers, check_workers, option
from layerprobe_cli.output import Output


def extract(
    model: Model,
    source: TextSource,
    extraction: Extraction,
    output: Output,
    ray: Ray = None,
    workers: Workers = None,
    blockwise: Annotated[
        bool,
        option(
            "Machine",
            "--blockwise",
            help="For a model that does not fit into memory: send all texts through one block before the next is read.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how much disk it takes and how much is free, and stop.")
    ] = False,
) -> None:
    """Embed texts at every layer and keep the result on disk.

    One forward pass does for all layers. What it takes on disk is said before it begins; memory does not grow with the
    texts.

    Example:  [bold]layerprobe extract google-bert/bert-base-cased --texts sentences.txt[/bold]
    """
    check_workers(workers, ray)
    data = source.load_texts()

    # only now: an error in the data needs no torch
    from layerprobe.extraction.embeddings import extract as extract_layers

    with output.progress():
        embeddings = extract_layers(
            extraction.resolve(model),
            data.items or data.texts,
            ray=ray,
            workers=workers,
            blockwise=blockwise,
            on_plan=functools.partial(output.plan, dry_run=dry_run),
        )
    warnings = (*data.warnings, *embeddings.warnings)
    output.notes(data.notes, warnings)
    summary = {
        "model": embeddings.model.name,
        "revision": embeddings.model.revision,
        "fingerprint": embeddings.fingerprint,
        "folder": str(embeddings.stored.directory),
        "layers": embeddings.n_layers,
        "texts": len(embeddings.texts),
        "features": embeddings.model.hidden_size,
        "pooling": embeddings.pooling,
        "norm": embeddings.model.norm,
        "dtype": embeddings.model.dtype,
        "store_dtype": embeddings.stored.manifest.key.store_dtype,
    }
    output.result(
        summary, named_values(summary, "Extraction"), as_json={**summary, "notes": data.notes, "warnings": warnings}
    )
