"""layerprobe find."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL
from layerprobe.results.conclusion import Fact, Step
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall, replaced

if TYPE_CHECKING:
    from layerprobe.finetuning.values import TuningResult
    from layerprobe.study.values import Finding

SEEDS_OF_TEST = 3
"""Seeds that a comparison with the last layer is advised with."""
FOUND = "found"
"""Value of --other-blocks for as many blocks as the chosen layer keeps."""


def find(
    call: PageCall,
    model: o.Embedding,
    reference: o.Reference,
    given: o.SourceOfModels,
    tuning: o.Tuning,
    search: o.Search,
    level: o.Level = LEVEL,
    against_last: o.AgainstLast = 0,
    dry_run: o.DryRun = False,
    save_models: o.SaveModels = False,
    final: Annotated[bool, "Fine-tuning"] = False,
    other_blocks: Annotated[str | None, {"metavar": "[found|3|1,3,5]"}] = None,
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
        final: Fine-tune the layer to keep once more, on training and validation examples together, and keep its weights
            for `layerprobe export`.
        other_blocks: Also fine-tune blocks other than the first ones: as many as the best layer keeps (found), this
            many, or these.
    """
    others, source = given
    task = o.load(source)

    from layerprobe.context import part
    from layerprobe.study.find import plan_find

    if others and other_blocks is not None:
        raise typer.BadParameter("expected one model with --other-blocks, got several")
    if not re.fullmatch(rf"{FOUND}|\d+(,\s*\d+)*", FOUND if other_blocks is None else other_blocks):
        raise typer.BadParameter(f"expected --other-blocks {FOUND}, 3 or 1,3,5, got {other_blocks!r}")
    checkpoints, further = o.resolved(model, others, task.readable), 0
    checkpoint, seeds = checkpoints[0], search["seeds"]
    if other_blocks is not None:
        from layerprobe.encoders.architecture import count_blocks
        from layerprobe.shrinking.teacher import candidates

        size: Any = 1 if other_blocks == FOUND else other_blocks
        n_others = len(candidates(checkpoint, task, size)) - 1  # errors, too, before anything is trained
        further = seeds * (count_blocks(checkpoint.config) + 1) * (2 if other_blocks == FOUND else n_others)
    settings: dict[str, Any] = {**search, "against_last": against_last, "final": final}
    settings["protocol"] = o.make_protocol(model, tuning)
    call.data(checkpoints, task)
    planned = {name: value for name, value in settings.items() if name not in ("jobs", "ray")}
    call.estimate(plan_find(checkpoints, task, goes_on=not dry_run, further=further, **planned), dry_run=dry_run)
    references = reference.specs(model)
    with part(start=0, share=1, whole=1 if other_blocks is None else 2):
        finding = lp.find(checkpoints, task, reference=references, **settings, save_models=save_models)
    beside: list[TuningResult] = []
    notes: list[str] = []
    if other_blocks == FOUND and finding.best_layer in (0, count_blocks(checkpoint.config)):
        notes.append(f"the best layer keeps {finding.best_layer} blocks, and there are no others of that number")
    elif other_blocks is not None:
        first, *further_blocks = candidates(
            checkpoint, task, finding.best_layer if other_blocks == FOUND else other_blocks
        )
        protocol = settings["protocol"]
        with part(start=1, share=1, whole=2):
            tuned = lp.finetune(checkpoint, task, len(first), blocks=further_blocks, seeds=seeds, protocol=protocol)
        beside.append(tuned)
    assert source is not None  # or no task had been loaded
    name = [model.name, *others][finding.place]
    shrinking = call.step("shrink", "shrink", name, "-t", source.source, "--tune", without=f"{o.READ} {o.EMBEDDING}")
    return Done(
        result=finding,
        beside=beside,
        as_json={"finding": finding, "other_blocks": beside[0]} if beside else None,
        warnings=finding.failures,
        notes=notes,
        steps=tuple(following(finding, shrinking)),
    )


def following(finding: Finding, shrinking: Sequence[Step]) -> Iterator[Step]:
    """Yield how to get the model to keep, and how to be surer: of a model that is best as a whole, how to shrink it."""
    conclusion, words = finding.conclusion, sys.argv[1:]
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
