"""layerprobe lab reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.checks import check_seeds
from layerprobe_cli import options as o
from layerprobe_cli.derive import complete_names
from layerprobe_cli.shell import Call, Done


def reproduce(
    call: Call,
    name: Annotated[
        str,
        {
            "argument": True,
            "metavar": "NAME",
            "autocompletion": complete_names("layerprobe.lab.reproduction:experiments"),
        },
    ],
    dry_run: bool = False,
    seeds: o.Seeds = "5",
    models: Annotated[str | None, {"metavar": "ID[=OTHER],..."}] = None,
    task: Annotated[str | None, {"flags": ("--task", "-t")}] = None,
    words: Annotated[Path | None, {"metavar": "FOLDER"}] = None,
    corpus: Annotated[list[Path] | None, {"metavar": "FILE"}] = None,
    device: o.Device = "auto",
    cache_dir: o.CacheDir = None,
) -> Done:
    """Repeat an experiment of arXiv 2402.13130.

    The paper's figures are printed beside ours; finished runs are not repeated. table2, pareto: STSB at the layers of
    Table 2; pareto adds which models no smaller one beats. table1: TMFT alone, with --words after word similarity, with
    --corpus after domain adaptation. figure2a: every layer of ELECTRA's base discriminator. figure3: CKA with BERT,
    without training. mrpc, sick, ko, de, es: the best and the last layer. random: random weights.

    Example:  [bold]layerprobe lab reproduce figure2a --dry-run[/bold]

    Args:
        name: Experiment, such as table2. All are listed above.
        dry_run: Print what would run, without loading a model or using the network.
        models: Run only these models of the experiment, each itself or with another hub id or folder instead. By
            default all.
        task: A copy of the data. By default the data set on the Hub, which sick and ko do not have.
        words: Files of scored word pairs, for table1: word similarity first, then TMFT.
        corpus: Texts, for table1: domain adaptation first, then TMFT. Given again: further files.
    """
    from layerprobe.encoders.model import Model
    from layerprobe.lab.reproduction import FirstSteps, experiment, plan_experiment, run_models
    from layerprobe.lab.reproduction import reproduce as reproduce_experiment
    from layerprobe.tasks.values import TaskSettings

    chosen, in_place, listed = experiment(name), _parse_models(models), check_seeds(seeds)
    data: FirstSteps = {
        "word similarity": [str(words)] if words else [],
        "domain adaptation": list(map(str, corpus or ())),
    }
    if dry_run:
        call.stop_at(plan_experiment(chosen, run_models(chosen, in_place), seeds=listed, data=data))
    source = task or chosen.data_hub_id
    if source is None:
        raise typer.BadParameter(f"expected --task with a copy of {chosen.data}, which is not read from the Hub")

    done = reproduce_experiment(
        name,
        TaskSettings(source=source, kind=chosen.kind),
        models=in_place,
        data=data,
        seeds=listed,
        options=Model(device=device, cache_dir=cache_dir),
    )
    return Done(result=done)


def _parse_models(models: str | None) -> dict[str, str] | None:
    """Return what `ID,ID=OTHER` says: a model of the paper to what is run in its place."""
    if models is None:
        return None
    pairs = [part.strip().partition("=") for part in models.split(",")]
    if not all(model and (other or not equals) for model, equals, other in pairs):
        raise typer.BadParameter(f"expected ID or ID=OTHER, joined by commas, for --models, got {models!r}")
    return {model: other or model for model, _, other in pairs}
