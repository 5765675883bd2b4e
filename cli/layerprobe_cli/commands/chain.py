"""layerprobe chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import CacheDir, Device, IntervalLevel, Precision, Report
from layerprobe_cli.output import Output, print_json, print_table
from layerprobe_cli.tables import mean_and_std, millions

if TYPE_CHECKING:
    from layerprobe.lab.chains.values import ChainPlan, ChainResult


def chain(
    file: Annotated[Path, typer.Argument(metavar="CHAIN.toml", help="What to do, see below.", show_default=False)],
    output: Output,
    report: Report,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps and what is stored of them.")] = False,
    level: IntervalLevel = LEVEL,
    device: Device = "auto",
    dtype: Precision = "float32",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code that comes with a checkpoint.")
    ] = False,
    cache_dir: CacheDir = None,
) -> None:
    r"""Train in steps, and say what the first ones add.

    Trainings are done one after the other, at each layer; finished steps are not repeated. The file names a model
    and \[\[step]] tables: adapt = "texts.txt" goes on with masked language modelling, finetune = "stsb" fine-tunes
    truncated models. A step has the options of `layerprobe adapt` or `finetune` as keys, with underscores. Beside
    model there are layers, seeds, reference, control, baseline and cka.

    Example:  [bold]layerprobe chain words-then-stsb.toml --report chain.html[/bold]
    """
    # only now: --help needs no torch
    from layerprobe.encoders.options import Options
    from layerprobe.lab.chains.run import plan_chain, run_chain
    from layerprobe.lab.chains.toml import load_chain

    wanted = load_chain(file)
    options = Options(device=device, dtype=dtype, trust_remote_code=trust_remote_code, cache_dir=cache_dir)
    plan = plan_chain(wanted, options=options)
    if not output.json:
        _print_plan(plan)
    elif dry_run:
        print_json(plan)
    if dry_run:
        return
    with output.progress() as progress:
        done = run_chain(wanted, level=level, options=options, progress=progress)
    output.notes(done.notes, done.warnings)
    output.result(done, _print_result)
    report.write(output, done)


def _print_plan(plan: ChainPlan) -> None:
    from layerprobe.names import short_name

    chain = plan.chain
    many = f"{len(chain.seeds)} seed{'s' if len(chain.seeds) > 1 else ''}"
    typer.echo(f"{chain.name}: layers {', '.join(map(str, plan.layers))}, {many}\n")
    rows = [
        (
            str(step.number),
            step.label if step.after or len(chain.steps) == 1 else f"{step.label}, without the steps before it",
            short_name(step.start),
            str(step.total),
            str(step.stored),
        )
        for step in plan.steps
    ]
    print_table(("step", "what", "from", "trainings", "stored"), rows)


def _print_result(done: ChainResult) -> None:
    from layerprobe.metrics.names import metric_title

    typer.echo()
    steps = done.chain.finetunings
    titles = [metric_title(outcomes[0].primary) for outcomes in done.trail.outcomes]
    header = ["layer", "parameters", *(f"{s.task_name} {title}" for s, title in zip(steps, titles, strict=True))]
    header += ["without", "effect", f"{100 * done.level:g} % interval"] if done.effects else []
    header += [f"random {control.random_init}" for control in done.controls]
    rows = []
    for index, outcome in enumerate(done.outcomes):
        cells = [str(outcome.layer), millions(outcome.parameters)]
        cells += [mean_and_std(outcomes[index].mean, outcomes[index].std) for outcomes in done.trail.outcomes]
        if done.effects:
            effect = done.effects[index]
            ends = "" if effect.interval is None else f"{effect.interval[0]:+.2f} to {effect.interval[1]:+.2f}"
            cells += [mean_and_std(done.direct[index].mean, done.direct[index].std), f"{effect.value:+.2f}", ends]
        controls = [control.outcomes[-1][index] for control in done.controls]
        rows.append([*cells, *(mean_and_std(each.mean, each.std) for each in controls)])
    print_table(header, rows)
    for adaptation in done.trail.adaptations:
        first, last = adaptation.metrics[0], adaptation.metrics[-1]
        typer.echo(
            f"\nAdaptation: {adaptation.steps} steps, held-out loss {first.held_out_loss:.3f} to "
            f"{last.held_out_loss:.3f}"
        )
    for sentence in (done.effect_sentence, done.cka_sentence):
        if sentence:
            typer.echo(f"\n{sentence}")
