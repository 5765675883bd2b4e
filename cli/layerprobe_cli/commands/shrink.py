"""layerprobe shrink."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import check_seeds
from layerprobe.finetuning.values import Protocol
from layerprobe.results.conclusion import Fact, Step, Verdict
from layerprobe.shrinking.values import TRAINING, ShrinkSettings, read_size, read_vocabulary
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group
from layerprobe_cli.shell import Done, PageCall, new_folder, replaced

if TYPE_CHECKING:
    from layerprobe.shrinking.values import Shrunk

READ_OF_TEXTS = {"columns", "file_format", "skip_empty"}
"""Options that say how --texts are read where there is no task; empty ones are always skipped."""


def shrink(
    call: PageCall,
    model: o.Embedding,
    source: o.Source,
    settings: Annotated[
        ShrinkSettings,
        Group(
            ShrinkSettings,
            "Size",
            "within dimensions vocabulary front",
            vocabulary={"type": str | None, "metavar": "TOKENS", "callback": o.checked(read_vocabulary)},
            front={"panel": "Report"},
        ),
    ],
    protocol: Annotated[
        dict[str, Any],
        Group(
            Protocol,
            "Training",
            "epochs learning_rate batch_size",
            make=dict,
            epochs={"default": TRAINING.epochs},
            learning_rate={"default": TRAINING.learning_rate, "help": "Peak learning rate of AdamW."},
            batch_size={"default": TRAINING.batch_size, "min": 2, "help": "Texts per step."},
        ),
    ],
    texts: Annotated[list[Path] | None, "Data"] = None,
    size: Annotated[str | None, "Size", {"callback": o.checked(read_size)}] = None,
    tune: Annotated[bool, "Training"] = False,
    seeds: Annotated[str, "Training", {"callback": o.checked(check_seeds)}] = "1",
    out: Annotated[Path | None, "Report", {"flags": ("--out", "-o"), "callback": new_folder}] = None,
    overwrite: bool = False,
    ray: o.Ray = None,
    dry_run: o.DryRun = False,
) -> Done:
    """Remove blocks and tokens from a model, and measure the loss.

    Forward passes show which blocks matter least. The remaining model is trained to reproduce the whole model's
    embeddings of texts, without labels. On a task, the result is how much worse the smaller model is, and whether that
    is within the loss that you allow.

    Example:  [bold]layerprobe shrink sentence-transformers/all-MiniLM-L6-v2 --texts corpus.txt -t stsb -o small[/bold]

    Args:
        texts: Texts to train on, without labels: one per line in a .txt or .txt.gz file, or a table. Repeat for further
            files. By default the task's training texts.
        size: Number of blocks to keep, such as 3; or which, such as 1,5,6; or 50% of the parameters at most; or 2x as
            fast at least; or all, with --vocabulary. By default the fewest blocks whose loss is --within; without a
            task half, or all with --vocabulary.
        tune: Also fine-tune both models on the task, and report the loss after that.
        seeds: Number of training seeds, or a list such as 3,5,8.
        out: Also export the model to this folder.
        overwrite: Replace an earlier export at --out.
    """
    if source is None and not texts:
        raise typer.BadParameter("expected texts to train on: give --texts FILE, or a task with --task")
    if source is None and tune:
        raise typer.BadParameter("expected a task with --tune: give --task FILE")
    if source is None:
        call.refuse(call.given(o.TASK) - READ_OF_TEXTS, "without --task")
    task = o.load(source) if source else None

    from layerprobe.export.folder import check_target, has_text
    from layerprobe.files.serialisation import digest
    from layerprobe.shrinking.run import plan_shrinking
    from layerprobe.store.manifest import texts_digest
    from layerprobe.tasks.loading import load_corpus
    from layerprobe.tasks.values import TextFile

    if texts:
        corpus = load_corpus(texts, **({} if task else _reading(call)))
    else:
        assert task is not None
        corpus = TextFile(name=f"the training split of {task.name}", texts=task.texts("train"))
    (checkpoint,) = o.resolved(model)
    how: dict[str, Any] = {
        "size": size,
        "tune": tune,
        "seeds": seeds,
        "protocol": dataclasses.replace(TRAINING, **protocol),
        "settings": settings,
    }
    of = [checkpoint.identity, texts_digest(corpus.texts), None if task is None else task.digest, how]
    mark = f"Digest of all that it depends on: {digest(of)}."
    written = out is not None and not overwrite and has_text(out, mark)  # by this command, which was ended after that
    if out is not None and not written:
        check_target(out, overwrite=overwrite)  # before anything is trained
    call.notes(corpus.notes, corpus.warnings)
    if task is not None:
        call.data(checkpoint, task)
    call.estimate(plan_shrinking(checkpoint, corpus, task, **how), dry_run=dry_run)
    result = lp.shrink(checkpoint, corpus, task, ray=ray, **how)
    warnings, files = list(result.warnings), {}
    if out is not None:
        if not written:
            account = f"{result.account} {mark}"
            exported = lp.export_model(result.folder, out, made=account, dense=result.dense, overwrite=overwrite)
            warnings += exported.warnings
        files = {"Folder": out}
    return Done(result=result, warnings=warnings, files=files, steps=tuple(following(result, written=out is not None)))


def following(result: Shrunk, *, written: bool) -> Iterator[Step]:
    """Yield a size to try next where these blocks are too few, else how to write the model as a folder."""
    words = sys.argv[1:]
    if result.verdict == Verdict.FAILED and (size := result.next_size) is not None:
        agree = next(removal.agreement for removal in result.removals if len(removal.kept) == size)
        facts = {"agree": Fact(value=agree, unit="score")}
        yield Step(name="more blocks", command=replaced(words, "--size", str(size)), facts=facts)
    if result.dimensions is not None and not written:
        yield Step(name="folder", command=(*words, "--out", "smaller"))
    elif not written:
        int8 = () if result.fastest_int8 is None else ("--int8", result.fastest_int8)
        yield Step(name="folder", command=("export", result.folder, "smaller", *int8))


def _reading(call: PageCall) -> dict[str, Any]:
    """Return how texts are read where there is no task, whose columns and format they would have."""
    parameters = call.context.params
    settings = o.task_settings(source=parameters["texts"][0], file_format=parameters["file_format"])
    return {"columns": parameters["columns"], "format": settings and settings.format}
