"""layerprobe doctor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from layerprobe.results.table import Table, millions
from layerprobe_cli.options import Loading, Model, Norm, TextSource
from layerprobe_cli.output import Output

if TYPE_CHECKING:
    from layerprobe.extraction.doctor import Diagnosis


def doctor(model: Model, source: TextSource, loading: Loading, output: Output, norm: Norm = "final") -> None:
    """Check that layerprobe can trust a model.

    Looked at are layers, norm, padding, truncation and finite numbers; of a task or texts, where some are given, what
    is unknown to the tokenizer, cut, a copy, or in train and test, lengths, labels or scores, and the smallest
    difference that the test split could show. Of the backends that compute embeddings on a CPU, it says which are
    there, whether they equal torch at every layer, and how fast they are on these texts. Exits with 1 if a check fails.

    Example:  [bold]layerprobe doctor answerdotai/ModernBERT-base[/bold]
    """
    data = source.load_texts() if source.task or source.texts else None
    from layerprobe.encoders.loading import resolve_checkpoint
    from layerprobe.extraction.doctor import doctor as examine
    from layerprobe.extraction.readability import data_quality
    from layerprobe.files.images import readable_as

    checkpoint = loading.resolve(model).with_options(norm=norm)
    if data is not None and checkpoint.towers:
        checkpoint = resolve_checkpoint(checkpoint, items=readable_as(data.texts))
    diagnosis = examine(checkpoint) if data is None else examine(checkpoint, data.texts)
    if data is not None:
        quality = data_quality(checkpoint, data.task or data.texts, split=source.split)
        diagnosis = dataclasses.replace(diagnosis, data=quality)
        output.notes(data.notes, (*data.warnings, *quality.warnings))
    output.result(diagnosis, *_parts(diagnosis))
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _parts(diagnosis: Diagnosis) -> Iterator[Table | str]:
    about = diagnosis.model
    yield (
        f"{about.name}: {about.architecture}, {about.n_blocks} blocks of {about.hidden_size} features, "
        f"{millions(about.parameters[-1])} parameters without pooler"
    )
    for table in diagnosis.tables:
        yield from ("", table)
