"""layerprobe score."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    Json,
    Loading,
    Model,
    Quiet,
    TaskSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_scores, show_notes


def score(
    model: Model,
    source: TaskSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    split: Annotated[Literal["validation", "test"], typer.Option(help="What is scored.")] = "test",
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score each layer on a task without fine-tuning.

    By cosines, or by a probe on the frozen embeddings. Embeddings are kept on disk: another call needs no pass of
    the model.

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    task = source.load()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.scoring.zero_shot import score as score_layers

    with progress_bar(quiet=quiet) as progress:
        scores, embeddings = score_layers(
            loading.find(model, random_init=loading.random_init),
            task,
            split=split,
            options=library_options(loading, embedding, extraction, cache_dir=cache_dir),
            progress=progress,
        )
    show_notes(task.notes, (*task.warnings, *embeddings.warnings), quiet=quiet)
    if json:
        print_json({"model": embeddings.model, "task": task.name, "kind": task.kind, "scores": scores})
    else:
        print_scores(scores, embeddings.model)
