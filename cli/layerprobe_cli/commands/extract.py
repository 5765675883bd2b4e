"""layerprobe extract."""

from __future__ import annotations

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


def extract(
    model: Model,
    source: TextSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed texts at every layer and keep the result on disk.

    One forward pass does for all layers.

    Example:  [bold]layerprobe extract google-bert/bert-base-cased --texts sentences.txt[/bold]
    """
    log_to_stderr(quiet=quiet)
    data = source.load_texts()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.extraction.embeddings import extract as extract_layers

    with progress_bar(quiet=quiet) as progress:
        found = extract_layers(
            loading.find(model, random_init=loading.random_init),
            data.texts,
            options=library_options(loading, embedding, extraction, cache_dir=cache_dir),
            progress=progress,
        )
    show_notes(data.notes, (*data.warnings, *found.warnings), quiet=quiet)
    summary = {
        "model": found.model.name,
        "revision": found.model.revision,
        "fingerprint": found.fingerprint,
        "folder": str(found.stored.directory),
        "layers": found.n_layers,
        "texts": len(found.texts),
        "features": found.model.hidden_size,
        "norm": found.model.norm,
        "dtype": found.model.dtype,
    }
    if json:
        print_json({**summary, "notes": data.notes, "warnings": [*data.warnings, *found.warnings]})
    else:
        print_table(("what", "value"), [(name, str(value)) for name, value in summary.items()])
