"""layerprobe extract."""

import functools

import layerprobe as lp
from layerprobe.results.table import named_values
from layerprobe_cli import options as o
from layerprobe_cli.shell import Call, Done

OF = "layerprobe.extraction.embeddings:extract"


def extract(
    call: Call,
    model: o.Extraction,
    source: o.TextSource,
    ray: o.Ray = None,
    workers: o.Workers = None,
    dry_run: bool = False,
) -> Done:
    """Embed texts at every layer and keep the result on disk.

    One forward pass does for all layers. What it takes on disk is said before it begins; memory does not grow with the
    texts.

    Example:  [bold]layerprobe extract google-bert/bert-base-cased --texts sentences.txt[/bold]

    Args:
        dry_run: Print how much disk space is needed and how much is free, and stop.
    """
    data = source.load()
    embeddings = lp.extract(
        o.resolved(model)[0],
        source.items(data),
        ray=ray,
        workers=workers,
        on_plan=functools.partial(call.estimate, dry_run=dry_run),
    )
    warnings = (*data.warnings, *embeddings.warnings)
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
    return Done(
        result={**summary, "notes": data.notes, "warnings": warnings},
        tables=[named_values(summary, "Extraction")],
        notes=data.notes,
        warnings=warnings,
    )
