"""layerprobe shrink."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from layerprobe.shrinking.values import TRAINING, WITHIN
from layerprobe_cli.options import (
    DryRun,
    Embedding,
    Model,
    Ray,
    Report,
    TaskSource,
    Workers,
    command,
    integers,
    new_folder,
    option,
)
from layerprobe_cli.output import Output


def _times(text: str | None) -> float | None:
    """Return how many times as fast `2x` is."""
    return None if text is None else _number(text.removesuffix("x"), "--latency", "2x", least=1.0)


def _share(text: str | None) -> float | None:
    """Return the share that `50%` is."""
    if text is None:
        return None
    return _number(text.removesuffix("%"), "--size", "50%", least=0.0, most=100.0) / 100


def _folder(out: Path | None) -> Path | None:
    return None if out is None else new_folder(out)


def _number(text: str, name: str, example: str, *, least: float, most: float = 1e6) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least < value < most:
        raise typer.BadParameter(f"expected {name} such as {example}, got {text!r}")
    return value


def shrink(
    model: Model,
    source: TaskSource,
    embedding: Embedding,
    report: Report,
    output: Output,
    texts: Annotated[
        list[Path] | None,
        option(
            "Data",
            help="Texts to train on, labels are not needed: one per line in a .txt or .txt.gz file, or a table. Given "
            "again: further files.",
            show_default="the task's training texts",
        ),
    ] = None,
    within: Annotated[
        float, option("Size", min=1e-6, help="Points of the task's metric x 100 that it may be worse by.")
    ] = WITHIN,
    blocks: Annotated[
        int | None,
        option("Size", min=1, help="How many blocks are kept.", show_default="the fewest that are --within; half"),
    ] = None,
    which: Annotated[
        str | None, option("Size", metavar="BLOCKS", help="Which blocks are kept, from 1, such as 1,5,6.")
    ] = None,
    size: Annotated[
        str | None, option("Size", metavar="SHARE", help="Share of the parameters that is kept at most, such as 50%.")
    ] = None,
    latency: Annotated[
        str | None, option("Size", metavar="TIMES", help="As often as fast as the whole model, such as 2x.")
    ] = None,
    tune: Annotated[
        bool, option("Training", "--tune", help="Also fine-tune both on the task; the loss after that is what counts.")
    ] = False,
    seeds: Annotated[str, option("Training", help="How many seeds of the training, or a list such as 3,5,8.")] = "1",
    epochs: Annotated[int, option("Training", min=1, help="Passes over the texts.")] = TRAINING.epochs,
    learning_rate: Annotated[
        float, option("Training", min=1e-12, help="Peak of the linear schedule.")
    ] = TRAINING.learning_rate,
    batch_size: Annotated[int, option("Training", min=2, help="Texts a step.")] = TRAINING.batch_size,
    out: Annotated[
        Path | None, option("Report", "--out", "-o", callback=_folder, help="Also export the model to this folder.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at --out.")] = False,
    ray: Ray = None,
    workers: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Take blocks out of a model that is good as a whole.

    Which blocks go is seen by forward passes. The rest is trained on the whole model's embeddings of texts, without
    labels. On a task it reports by how much the smaller model is worse, and whether that is shown to be within what you
    allow.

    Example:  [bold]layerprobe shrink sentence-transformers/all-MiniLM-L6-v2 --texts corpus.txt -t stsb -o small[/bold]
    """
    given = {"--blocks": blocks, "--which": which, "--size": size, "--latency": latency}
    if len(said := [name for name, value in given.items() if value is not None]) > 1:
        raise typer.BadParameter(f"expected one of {', '.join(given)}, got {' and '.join(said)}")
    kept = None if which is None else integers(which, "--which")
    share, speed, listed = _share(size), _times(latency), integers(seeds, "--seeds")
    task = source.load() if source.task else None
    if task is None and not texts:
        raise typer.BadParameter("expected texts to train on: give --texts FILE, or a task with --task")
    if task is None and tune:
        raise typer.BadParameter("expected a task with --tune: give --task FILE")

    # only now: an error in the data needs no torch
    from layerprobe.shrinking.run import plan_shrinking
    from layerprobe.shrinking.run import shrink as make_smaller
    from layerprobe.tasks.corpus import load_corpus

    corpus = load_corpus(texts) if texts else None
    checkpoint = embedding.resolve(model)
    how: dict[str, Any] = {
        "tune": tune,
        "seeds": listed if "," in seeds else listed[0],
        "protocol": replace(TRAINING, epochs=epochs, learning_rate=learning_rate, batch_size=batch_size),
    }
    trained_on = corpus.texts if corpus is not None else task.texts("train") if task is not None else ()
    if corpus is not None:
        output.notes(corpus.notes, corpus.warnings)
    warnings = () if task is None else output.data(checkpoint, task) or task.warnings
    plan = plan_shrinking(checkpoint, trained_on, task, sought=not said, **how)
    output.plan(plan, dry_run=dry_run)
    with output.progress():
        result = make_smaller(
            checkpoint,
            trained_on,
            task,
            blocks=kept or blocks,
            size=share,
            speed=speed,
            within=within,
            name=corpus.name if corpus is not None else f"the training texts of {source.task}",
            ray=ray,
            workers=workers,
            **how,
        )
    output.notes((), result.warnings)
    parts: list[Any] = [*([result.order] if result.removals else []), result.table, result.sentence]
    commands = [command("export", result.folder, "smaller")]
    if out is not None:
        from layerprobe.export.run import export_model

        exported = export_model(result.folder, out, made=result.account, overwrite=overwrite)
        output.notes((), exported.warnings)
        parts.append(f"Folder: {out}")
        commands = []
    else:
        parts.append(f"To write it as a folder: {commands[0]}")
    output.result(result, *parts)
    report.write(output, result, warnings=warnings, commands=commands)
