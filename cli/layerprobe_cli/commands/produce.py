"""Make models and embeddings: layerprobe shrink, extract, finetune and export."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL, check_seeds
from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.results.conclusion import Fact, Step, Verdict
from layerprobe.results.table import named_values
from layerprobe.shrinking.values import TRAINING, ShrinkSettings, read_size, read_vocabulary
from layerprobe.stats.values import TOLERANCE
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group, option
from layerprobe_cli.shell import Call, Done, PageCall, new_folder, replaced

if TYPE_CHECKING:
    from layerprobe.shrinking.values import Shrunk

READ_OF_TEXTS = {"file_format", "columns", "skip_empty"}
"""Options that say how --texts are read where there is no task; empty ones are always skipped."""


_VOCABULARY = typer.Option(metavar="TOKENS", callback=o.checked(read_vocabulary))


def shrink(
    call: PageCall,
    model: o.Embedding,
    source: o.Source,
    settings: Annotated[
        ShrinkSettings,
        Group("Size", ShrinkSettings, {"vocabulary": Annotated[str | None, _VOCABULARY], "front": option("Report")}),
    ],
    protocol: Annotated[
        Protocol,
        Group(
            "Training",
            Protocol,
            {
                "learning_rate": typer.Option(help="Peak learning rate of AdamW."),
                "batch_size": typer.Option(min=2, help="Texts per step."),
            },
            defaults=dataclasses.asdict(TRAINING),
            only=("epochs", "learning_rate", "batch_size"),
            make=functools.partial(dataclasses.replace, TRAINING),
        ),
    ],
    texts: Annotated[list[Path] | None, option("Data")] = None,
    size: Annotated[str | None, option("Size", callback=o.checked(read_size))] = None,
    tune: Annotated[bool, option("Training")] = False,
    seeds: Annotated[str, option("Training", callback=o.checked(check_seeds))] = "1",
    out: Annotated[Path | None, option("Report", "--out", "-o", callback=new_folder)] = None,
    overwrite: bool = False,
    ray: o.Ray = None,
    dry_run: o.DryRun = False,
) -> Done:
    """Remove blocks and tokens from a model, and measure the loss.

    Forward passes show which blocks matter least. The remaining model is trained to reproduce the whole model's
    embeddings of texts, without labels. On a task, the result is how much worse the smaller model is, and whether that
    is within the loss that you allow; in retrieval also whether your index must be rebuilt.

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
    texts = texts or []
    if source is None and not texts:
        raise typer.BadParameter("expected texts to train on: give --texts FILE, or a task with --task")
    if source is None and tune:
        raise typer.BadParameter("expected a task with --tune: give --task FILE")
    if source is None:
        call.refuse(call.given(*o.TASK) - READ_OF_TEXTS, "without --task")
    task = o.load(source) if source else None

    from layerprobe.export.folder import check_target, has_text
    from layerprobe.files.serialisation import digest
    from layerprobe.shrinking.run import plan_shrinking
    from layerprobe.store.manifest import texts_digest
    from layerprobe.tasks.loading import load_corpus
    from layerprobe.tasks.values import TextFile

    if task is not None:
        corpus = TextFile(name=f"the training split of {task.name}", texts=task.texts("train"))
        corpus = load_corpus(texts) if texts else corpus
    else:
        parameters = call.context.params
        read = o.task_settings(source=texts[0], file_format=parameters["file_format"])
        corpus = load_corpus(texts, columns=parameters["columns"], format=None if read is None else read.format)
    (checkpoint,) = o.resolved(model)
    chosen = {"size": size, "tune": tune, "seeds": seeds, "protocol": protocol, "settings": settings}
    of = [checkpoint.identity, texts_digest(corpus.texts), None if task is None else task.digest, chosen]
    mark = f"Digest of all that it depends on: {digest(of)}."
    written = out is not None and not overwrite and has_text(out, mark)  # by this command, which was ended after that
    if out is not None and not written:
        check_target(out, overwrite=overwrite)  # before anything is trained
    call.notes(corpus.notes, corpus.warnings)
    if task is not None:
        call.data(checkpoint, task)
    planned = plan_shrinking(
        checkpoint, corpus, task, size=size, tune=tune, seeds=seeds, protocol=protocol, settings=settings
    )
    call.estimate(planned, dry_run=dry_run)
    result = lp.shrink(
        checkpoint, corpus, task, size=size, tune=tune, seeds=seeds, protocol=protocol, settings=settings, ray=ray
    )
    warnings = list(result.warnings)
    files = {}
    if out is not None:
        if not written:
            account = f"{result.account} {mark}"
            dense, prompts = result.dense, result.prompts
            exported = lp.export_model(
                result.folder, out, made=account, dense=dense, prompts=prompts, overwrite=overwrite
            )
            warnings += exported.warnings
        files = {"Folder": out}
    return Done(
        result=result, warnings=warnings, files=files, steps=tuple(_after_shrinking(result, written=out is not None))
    )


def _after_shrinking(result: Shrunk, *, written: bool) -> Iterator[Step]:
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


def finetune(
    call: PageCall,
    model: o.Embedding,
    models_and_data: o.SourcesOfModels,
    tuning: o.Tuning,
    seeds: o.Seeds = "5",
    layers: o.Layers = "all",
    scan: Annotated[bool, option("Fine-tuning")] = False,
    weighting: Annotated[Weighting, option("Fine-tuning")] = "falling",
    level: o.Level = LEVEL,
    tolerance: Annotated[float, option("Fine-tuning")] = TOLERANCE,
    save_models: o.SaveModels = False,
    retry_failed: Annotated[bool, option("Fine-tuning")] = False,
    workers: Annotated[int | None, option("Machine", min=1)] = None,
    ray: o.Ray = None,
    dry_run: o.DryRun = False,
) -> Done:
    """Fine-tune models truncated at each layer (TMFT) on tasks.

    There is one run per model, task, layer and seed. Finished runs are not repeated: the same command continues after
    an interruption, and two commands with one cache share the work. A run that fails is marked, and the others go on.
    With --scan, one run has a loss at every layer.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]

    Example:  [bold]layerprobe finetune google/electra-base-discriminator google-bert/bert-base-cased -t stsb -t sick
    --layers 6,12 --workers 2[/bold]

    Args:
        tolerance: Score loss that you accept for a smaller model, in points of the metric x 100.
        scan: One run per seed of the whole model with a loss at every layer, by default one seed. Scores can differ
            from those of models truncated at one layer. The model can be truncated anywhere afterwards.
        weighting: With --scan, how much the loss at each layer counts: falling with depth, equal, one random layer a
            step, or the first, the last and a random one.
        retry_failed: Repeat runs that are marked as failed.
        workers: Runs at a time. By default one per GPU, else one.
    """
    others, source = models_and_data
    if scan and call.given("layers"):
        raise typer.BadParameter("expected no --layers with --scan, which has a loss at every layer")
    if not scan:
        call.refuse(call.given("weighting"), "without --scan")
    listed = check_seeds(seeds) if not scan or call.given("seeds") else (0,)
    tasks = [o.load(one) for one in source or (None,)]

    import torch

    from layerprobe.encoders.device import resolve_device
    from layerprobe.finetuning.tuning import check_layers, plan_tuning
    from layerprobe.results.shown import Estimate, together

    checkpoints = o.resolved(model, others, tasks[0].readable)
    protocol = o.make_protocol(model, tuning)
    chosen = [check_layers(checkpoint, layers) for checkpoint in checkpoints]
    for task in tasks:
        of = task.name if len(tasks) > 1 else ""
        call.data(checkpoints, task, of=of)
    if dry_run:
        costs = [len(listed) * (max(of) + 1 if scan else sum(layer + 1 for layer in of)) for of in chosen]

        def planned(checkpoint: Any, task: Any, cost: int) -> Estimate:
            return plan_tuning(checkpoint, task, block_steps=lambda _: cost, protocol=protocol)

        plans = [planned(of, task, cost) for of, cost in zip(checkpoints, costs, strict=True) for task in tasks]
        call.stop_at(plans[0] if len(plans) == 1 else together(plans, "That is about {} together."))
    if workers is None and ray is None and str(resolve_device(model.device)) == "cuda":
        workers = torch.cuda.device_count()
    result = lp.finetune(
        checkpoints,
        tasks,
        "all" if scan else layers,
        seeds=listed,
        protocol=protocol,
        scan=scan,
        weighting=weighting,
        save_models=save_models,
        retry_failed=retry_failed,
        tolerance=tolerance,
        workers=workers,
        ray=ray,
    )
    failed = bool(result.failures) and not scan
    steps: list[Step] = []
    if save_models and len(result.curves) == 1:
        best = result.best_layer
        directory = next(str(run.directory) for run in result.scored if run.layer == best)
        words = ("export", directory, f"layer-{best}", *(("--layer", str(best)) if scan else ()))
        steps.append(Step(name="export", command=words))
    directories = list(dict.fromkeys(str(run.directory) for run in result.scored)) if save_models else []
    runs: list[dict[str, Any]] = [{**to_dict(run), "directory": str(run.directory)} for run in result.runs]
    return Done(
        result=result,
        as_json={**to_dict(result), "runs": runs},
        notes=[f"the runs are in {result.scored[0].directory.parent}"] if len(result.curves) == 1 else [],
        steps=steps,
        files={f"Weights {number}": directory for number, directory in enumerate(directories, start=1)},
        code=int(failed),
    )


Exported = Annotated[
    Model,
    o.model_group(
        o.EXPORTED,
        typer.Argument(
            metavar="MODEL",
            help="Hub id, id@revision, a local folder, or a directory of `layerprobe finetune --save-models`, whose "
            "options are then those of the run.",
        ),
    ),
]


def export(
    call: Call,
    model: Exported,
    out: Annotated[Path, typer.Argument(callback=new_folder)],
    layer: int | None = None,
    finding: Path | None = None,
    int8: Annotated[list[str] | None, typer.Option(metavar="[onnx|openvino]")] = None,
    overwrite: bool = False,
) -> Done:
    """Write a truncated model as a folder that others load.

    transformers and sentence-transformers load it. Before the folder is renamed to its final name, the model is loaded
    and compared with the embeddings of that layer.

    Example:  [bold]layerprobe export google/electra-base-discriminator electra-9 --layer 9[/bold]

    Args:
        out: The folder to write.
        layer: Number of blocks to keep: 0 for the embeddings alone, -1 for all. By default that of a fine-tuning run.
        finding: Output of `layerprobe find --json`, as evidence for the model card.
        int8: Also write the model in 8 bits for this backend. Repeat for both.
        overwrite: Replace an earlier export at out.
    """
    evidence = None if finding is None else o.read_finding(finding)
    result = lp.export_model(model, out, layer=layer, finding=evidence, int8=int8 or (), overwrite=overwrite)
    upload = f"hf upload USER/NAME {shlex.quote(result.path)} . --private"
    return Done(result=result, files={"To upload it": upload})
