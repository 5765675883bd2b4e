"""layerprobe lab chain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import CacheDir, Device, IntervalLevel, Precision, Report
from layerprobe_cli.output import Output, print_json


def chain(
    file: Annotated[Path, typer.Argument(metavar="CHAIN.toml", help="What to do, see below.")],
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
    and \[\[step]] tables: adapt = "texts.txt" continues masked-language-model pretraining, finetune = "stsb" fine-tunes
    truncated models. A step has the options of `layerprobe lab adapt` or `finetune` as keys, with underscores. Beside
    model there are layers, seeds, reference, control, baseline and cka.

    Example:  [bold]layerprobe lab chain words-then-stsb.toml --report chain.html[/bold]
    """
    # only now: --help needs no torch
    from layerprobe.encoders.model import Options
    from layerprobe.lab.chains.run import plan_chain, run_chain
    from layerprobe.lab.chains.toml import load_chain

    wanted = load_chain(file)
    options = Options(device=device, dtype=dtype, trust_remote_code=trust_remote_code, cache_dir=cache_dir)
    plan = plan_chain(wanted, options=options)
    if not output.json:
        typer.echo(plan.table.titled)
    elif dry_run:
        print_json(plan)
    if dry_run:
        return
    with output.progress(level):
        done = run_chain(wanted, options=options)
    output.notes(done.notes, done.warnings)
    output.result(done, f"\n{done.table.text()}", *(f"\n{sentence}" for sentence in done.sentences))
    report.write(output, done)
