"""Choose a layer: layerprobe demo, find, predict and check."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL
from layerprobe.encoders.model import Model
from layerprobe.results.conclusion import Fact, Step, Verdict
from layerprobe.results.table import named_values
from layerprobe_cli import options as o
from layerprobe_cli.derive import option
from layerprobe_cli.shell import Call, Done, PageCall, file_to_write, folder_to_write, replaced

if TYPE_CHECKING:
    from layerprobe.encoders.identity import Resolved
    from layerprobe.finetuning.values import TuningResult
    from layerprobe.study.values import Finding
    from layerprobe.tasks.values import Task, TextFile

FILES = "rtd", "mlm", "pairs.csv", "texts.txt"
SEEDS_OF_TEST = 3
"""Seeds of a comparison with the last layer, where one is made or advised."""
FOUND = "found"
"""Value of --other-blocks for as many blocks as the chosen layer keeps."""


def demo(
    call: PageCall,
    out: Annotated[Path, typer.Option("--out", "-o", callback=folder_to_write)] = Path("demo"),
    files: Annotated[Path | None, typer.Option(callback=folder_to_write)] = None,
    cache_dir: o.CacheDir = None,
) -> Done:
    """Find the layer of a small encoder to keep, offline.

    The encoders come with layerprobe. Both were pretrained on the same synthetic sentences: one by masked language
    modelling, one as an ELECTRA discriminator by replaced token detection. The demo compares them, finds the layer of
    the second one to keep, and writes the report.

    Example:  [bold]layerprobe demo --out demo[/bold]

    Args:
        out: Folder for report.html and finding.json.
        files: Only write the two encoders, sentence pairs and texts there, to try the other commands on.
    """
    from layerprobe.embedded import DEMO_PROTOCOL, DEMO_SIZES, embedded_model, embedded_task, write_embedded

    if files is not None:
        write_embedded(files)
        written = {name: str(files / name) for name in FILES}
        return Done(result=written, tables=[named_values(written, "Files")])
    out.mkdir(parents=True, exist_ok=True)
    model = embedded_model("rtd")
    finding = lp.find(
        Model(model, cache_dir=cache_dir),
        embedded_task(**DEMO_SIZES),
        reference=str(embedded_model("mlm")),
        against_last=SEEDS_OF_TEST,
        final=True,
        protocol=DEMO_PROTOCOL,
        save_models=True,
        jobs=None,
    )
    lp.save(finding, out / "finding.json")
    call.report = call.report or out / "report.html"
    return Done(result=finding, warnings=finding.failures)


def find(
    call: PageCall,
    model: o.Embedding,
    models_and_data: o.SourceOfModels,
    tuning: o.Tuning,
    search: o.Search,
    reference: o.References = None,
    reference_name: o.ReferenceNames = None,
    reference_random_init: o.ReferenceSeed = None,
    cross_validation: Annotated[bool | None, option("Search", show_default="below 1,000 validation examples")] = None,
    jobs: Annotated[
        int | None, option("Machine", min=1, show_default="one per GPU, else one per core, at most 4")
    ] = None,
    ray: o.Ray = None,
    level: o.Level = LEVEL,
    against_last: o.AgainstLast = 0,
    dry_run: o.DryRun = False,
    save_models: o.SaveModels = False,
    final: Annotated[bool, option("Fine-tuning")] = False,
    other_blocks: Annotated[str | None, typer.Option(metavar="[found|3|1,3,5]")] = None,
) -> Done:
    """Find the layer to keep of one model or several, at a small cost.

    InfoNCE of the pretrained model says where to look first. Models truncated there, and at the layers that are most
    informative next, are fine-tuned. The result is the best layer with its confidence, all layers that may be the best,
    the smallest layer within the tolerance, and what was spent. Finished runs are not repeated. Several models share
    the budget, which goes to the runs that can still change the answer. With --reference, layers are first compared
    with those of another model, without training.

    Example:  [bold]layerprobe find google/electra-base-discriminator -t stsb --tolerance 0.5 --budget 15%[/bold]

    Example:  [bold]layerprobe find all-MiniLM-L6-v2 all-mpnet-base-v2 -t stsb --budget 15%[/bold]

    Args:
        cross_validation: Choose the layer by cross-validation over training and validation examples.
        jobs: Runs at a time.
        final: Fine-tune the layer to keep once more, on training and validation examples together, and keep its weights
            for `layerprobe export`.
        other_blocks: Also fine-tune blocks other than the first ones: as many as the best layer keeps (found), this
            many, or these.
    """
    others, source = models_and_data
    references = o.references(model, reference, reference_name, reference_random_init)
    task = o.load(source)

    from layerprobe.context import part
    from layerprobe.study.find import patient, plan_find

    if others and other_blocks is not None:
        raise typer.BadParameter("expected one model with --other-blocks, got several")
    if not re.fullmatch(rf"{FOUND}|\d+(,\s*\d+)*", FOUND if other_blocks is None else other_blocks):
        raise typer.BadParameter(f"expected --other-blocks {FOUND}, 3 or 1,3,5, got {other_blocks!r}")
    checkpoints = o.resolved(model, others, task.readable)
    checkpoint = checkpoints[0]
    further = 0
    if other_blocks is not None:
        from layerprobe.encoders.architecture import count_blocks
        from layerprobe.shrinking.teacher import candidates

        size: Any = 1 if other_blocks == FOUND else other_blocks
        n_others = len(candidates(checkpoint, task, size)) - 1  # errors, too, before anything is trained
        further = search.seeds * (count_blocks(checkpoint.config) + 1) * (2 if other_blocks == FOUND else n_others)
    protocol = patient(o.make_protocol(model, tuning))
    call.data(checkpoints, task)
    about: dict[str, Any] = {
        "tolerance": search.tolerance,
        "budget": search.budget,
        "seeds": search.seeds,
        "cross_validation": cross_validation,
        "against_last": against_last,
        "final": final,
        "protocol": protocol,
    }
    call.estimate(plan_find(checkpoints, task, **about, goes_on=not dry_run, further=further), dry_run=dry_run)
    with part(start=0, share=1, whole=1 if other_blocks is None else 2):
        finding = lp.find(checkpoints, task, **about, reference=references, save_models=save_models, jobs=jobs, ray=ray)
    beside: list[TuningResult] = []
    notes: list[str] = []
    if other_blocks == FOUND and finding.best_layer in (0, count_blocks(checkpoint.config)):
        notes.append(f"the best layer keeps {finding.best_layer} blocks, and there are no others of that number")
    elif other_blocks is not None:
        first, *further_blocks = candidates(
            checkpoint, task, finding.best_layer if other_blocks == FOUND else other_blocks
        )
        with part(start=1, share=1, whole=2):
            tuned = lp.finetune(
                checkpoint, task, len(first), blocks=further_blocks, seeds=search.seeds, protocol=protocol
            )
        beside.append(tuned)
    assert source is not None  # or no task had been loaded
    name = [model.name, *others][finding.place]
    shrinking = call.step("shrink", "shrink", name, "-t", source.source, "--tune", without=[*o.READ, *o.EMBEDDING])
    return Done(
        result=finding,
        beside=beside,
        as_json={"finding": finding, "other_blocks": beside[0]} if beside else None,
        warnings=finding.failures,
        notes=notes,
        steps=tuple(_after_finding(finding, shrinking)),
    )


def _after_finding(finding: Finding, shrinking: Sequence[Step]) -> Iterator[Step]:
    """Yield how to get the model to keep, and how to be surer: of a model that is best as a whole, how to shrink it."""
    conclusion = finding.conclusion
    words = sys.argv[1:]
    if conclusion.case in ("floor", "spoilt"):
        return
    is_cut = finding.best_layer < finding.last_layer and not finding.is_refuted
    if is_cut:
        yield from conclusion.steps or [Step(name="final", command=(*words, "--final"))]
    else:
        yield from shrinking
        if finding.final is not None:
            yield from conclusion.steps
            return
    if is_cut and finding.against_last is None and not finding.others:
        seeds = Fact(value=SEEDS_OF_TEST, unit="count")
        command = (*words, "--against-last", str(SEEDS_OF_TEST))
        yield Step(name="test", command=command, facts={"seeds": seeds})
    elif finding.answer.decision.stop == "budget":
        budget = Fact(value=min(1.0, 2 * conclusion.facts["share"].value), unit="share")
        yield Step(name="budget", command=replaced(words, "--budget", f"{budget.value:.0%}"), facts={"budget": budget})
    elif finding.answer.decision.stop == "seeds":
        more = Fact(value=2 * finding.answer.settings.seeds, unit="count")
        yield Step(name="seeds", command=replaced(words, "--seeds", f"{more.value:.0f}"), facts={"seeds": more})


def predict(
    call: PageCall,
    model: o.Extraction,
    similarity: o.Similarity,
    source: o.TextSource,
    reference: o.References = None,
    reference_name: o.ReferenceNames = None,
    reference_random_init: o.ReferenceSeed = None,
    rule: o.RuleName = None,
    n_texts: o.NumberOfTexts = None,
    level: o.Level = LEVEL,
    fail_on_drop: bool = False,
    readings: bool = False,
) -> Done:
    """Predict which layer to keep, before any training.

    It flags layers that may drop after fine-tuning. It needs no labels: 128 texts, or more where these do not settle
    the prediction.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]

    Args:
        fail_on_drop: Exit with code 3 if a layer is flagged.
        readings: Print the readings of every layer instead, with a task also those that need labels.
    """
    if readings and call.report:
        raise typer.BadParameter("expected no --report with --readings, which are one table")
    references = o.references(model, reference, reference_name, reference_random_init)
    (measure,) = similarity.measures()
    data = source.load()
    (checkpoint,) = o.resolved(model)
    if readings:
        return _read(checkpoint, source, data)
    call.data(checkpoint, data, split=source.split, learns=False)
    prediction = lp.predict(
        checkpoint,
        data,
        reference=references,
        rule=rule,
        groups=source.text_groups(data),
        split=source.split,
        n_texts=n_texts,
        measure=measure,
        alignment=similarity.aligned,
    )
    unreadable = prediction.data is not None and not prediction.data.readable
    failed = ""
    steps: tuple[Step, ...] = ()
    if source.task is not None and not unreadable:
        steps = call.step("find", "find", model.name, "-t", source.task.source, without=o.LOADING)
    if fail_on_drop and unreadable:
        failed = "nothing can be predicted of a model that cannot read the texts"
    elif fail_on_drop and prediction.drop.drops:
        failed = f"layers are flagged from layer {prediction.drop.onset} on"
    return Done(result=prediction, steps=steps, failed=failed)


def _read(checkpoint: Resolved, source: o.Texts, data: Task | TextFile) -> Done:
    """Return the numbers by layer that rules can read."""
    from layerprobe.extraction.embeddings import left_out_layers
    from layerprobe.readings.reading import READINGS, curves_table
    from layerprobe.readings.source import layers_read, read_curves
    from layerprobe.tasks.values import Task

    task = data if isinstance(data, Task) else None
    wanted = [name for name, reading in READINGS.usable().items() if reading.alone or (task and reading.labelled)]
    curves = read_curves(checkpoint, source.items(data), wanted, task=task, groups=source.text_groups(data))
    left_out = left_out_layers(checkpoint.label, checkpoint.pooling, *layers_read(curves)) if curves else ()
    return Done(
        result=curves,
        tables=[curves_table(curves)] if curves else [],
        notes=data.notes,
        warnings=(*data.warnings, *left_out),
    )


def check(
    call: Call,
    model: Annotated[Model, o.model_group([*o.EMBEDDING, "norm"])],
    source: o.TextSource,
    save: Annotated[Path | None, typer.Option(callback=file_to_write)] = None,
    against: Path | None = None,
) -> Done:
    """Check that layerprobe can trust a model.

    It checks layers, the norm, padding, truncation and finite numbers. With a task or texts, it also counts unknown
    characters, truncated texts, duplicates, and texts of other splits that are also in train. It compares every
    installed backend with torch at every layer, and times it on these texts. The exit code is 1 if a check fails.

    With --save and --against it only says whether the model still turns 32 texts into the same tokens and embeddings.

    Example:  [bold]layerprobe check answerdotai/ModernBERT-base[/bold]

    Example:  [bold]layerprobe check answerdotai/ModernBERT-base --save before.json[/bold]

    Example:  [bold]layerprobe check answerdotai/ModernBERT-base --against before.json[/bold]

    Args:
        save: Save tokens and embeddings of 32 texts, with versions, to this .json file.
        against: Compare with such a file, and exit with code 3 if tokens or embeddings have changed.
    """
    if save or against:
        if source:
            raise typer.BadParameter("expected no data with --save and --against: they have texts of their own")
        if save and save.suffix.lower() != ".json":
            raise typer.BadParameter(f"expected a file that ends in .json for --save, got {save}")
        snapshot = lp.snapshot(model, against)
        if save:
            lp.save(dataclasses.replace(snapshot, before=None), save)
        failed = snapshot.summary if snapshot.verdict == Verdict.FAILED else ""
        return Done(result=snapshot, details=True, files={"Saved": save} if save else {}, failed=failed)
    data: Any = source.load() if source else None
    from layerprobe.encoders.identity import resolve
    from layerprobe.extraction.check import check_model
    from layerprobe.extraction.embeddings import data_quality
    from layerprobe.files.images import readable_as

    (checkpoint,) = o.resolved(model)
    if data is None:
        diagnosis = check_model(checkpoint)
    else:
        texts = source.items(data).texts
        checkpoint = resolve(checkpoint, items=readable_as(texts))
        quality = data_quality(checkpoint, data if source.task else texts, split=source.split)
        diagnosis = dataclasses.replace(check_model(checkpoint, texts), data=quality)
        call.notes(data.notes, (*data.warnings, *quality.warnings))
    return Done(result=diagnosis, details=True, code=int(not diagnosis.healthy))
