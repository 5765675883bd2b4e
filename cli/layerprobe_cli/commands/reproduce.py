"""layerprobe reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe_cli.options import CacheDir, Json, Quiet, Tuning
from layerprobe_cli.output import log_to_stderr, print_json, print_table, progress_bar
from layerprobe_cli.tables import show_notes

if TYPE_CHECKING:
    from layerprobe.reproduction import Cost, ReproducedLayer, Reproduction
    from layerprobe.results import Metric


def reproduce(
    name: Annotated[
        str, typer.Argument(help="Experiment: table2, figure2a, mrpc or sick.", metavar="NAME", show_default=False)
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration and what it costs; no model, no network.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="How many seeds, counted from 0, or a list of them such as 3,5,8.")] = "5",
    models: Annotated[
        str | None,
        typer.Option(
            metavar="ID[=OTHER],...",
            help="Run these models of the experiment only, each itself or another hub id or folder in its place.",
            show_default="all",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="A copy of the data.", show_default="the data set on the Hub; sick has none"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do an experiment of arXiv 2402.13130 again and print its figures beside ours. Finished runs are not repeated.

    table2: STSB at the layers of Table 2. figure2a: STSB at every layer of ELECTRA's base discriminator. mrpc, sick:
    the best and the last layer. Not here: Korean, German and Spanish STSB, for whose models the figures at hand name no
    hub ids, and random weights, for which they give no figures.

    Example:  [bold]layerprobe reproduce figure2a --dry-run[/bold]
    """
    log_to_stderr(quiet=quiet)
    from layerprobe import load_task
    from layerprobe.reproduction import cost, experiment, planned_models, read_paper

    chosen, replaced, seed_list = experiment(name), _replacements(models), Tuning(seeds=seeds).seed_list()
    planned, data = planned_models(chosen, replaced), read_paper().data_set(chosen.data)
    source = task or (None if dry_run else data.hub_id)
    if source is None and not dry_run:
        raise typer.BadParameter(f"expected --task with a copy of {data.name}, which is not read from the Hub")
    loaded = None if source is None else load_task(source, kind=data.kind)
    estimate = cost(chosen, planned, seeds=seed_list, train=None if loaded is None else len(loaded.train))
    if dry_run or loaded is None:
        if json:
            print_json(estimate)
        else:
            _print_cost(estimate)
        return

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe import Options
    from layerprobe.study.reproduction import reproduce as reproduce_experiment

    show_notes([*loaded.notes, _cost_sentence(estimate)], loaded.warnings, quiet=quiet)
    options = Options(device=device, cache_dir=cache_dir)
    with progress_bar(quiet=quiet) as progress:
        done = reproduce_experiment(name, loaded, models=replaced, seeds=seed_list, options=options, progress=progress)
    if json:
        print_json(done)
    else:
        _print_reproduction(done)


def _replacements(models: str | None) -> dict[str, str] | None:
    """Return what `ID,ID=OTHER` says: a model of the paper to what is run in its place."""
    if models is None:
        return None
    pairs = [part.strip().partition("=") for part in models.split(",")]
    if not all(model and (other or not equals) for model, equals, other in pairs):
        raise typer.BadParameter(f"expected ID or ID=OTHER, joined by commas, for --models, got {models!r}")
    return {model: other or model for model, _, other in pairs}


def _print_cost(cost: Cost) -> None:
    typer.echo(f"{cost.experiment}: {cost.title} ({cost.source} of arXiv 2402.13130)\n")
    print_table(
        ("model", "layer", "parameters", "runs", "steps", "GPU hours"),
        [
            (
                _ran(layer.model, layer.runs_model),
                str(layer.layer),
                "" if layer.parameters is None else f"{layer.parameters:.2f} M",
                str(layer.runs),
                str(layer.steps),
                "" if layer.gpu_hours is None else f"{layer.gpu_hours:.2f}",
            )
            for layer in cost.layers
        ],
    )
    how = cost.protocol
    typer.echo(
        f"\n{cost.data}: {cost.train} training pairs; AdamW at {how.learning_rate:g}, "
        f"weight decay {how.weight_decay:g}, "
        f"{how.epochs} epochs in batches of {how.batch_size}, {100 * how.warmup:g} % warm-up, {how.pooling} pooling; "
        f"seeds {', '.join(map(str, cost.seeds))}"
    )
    typer.echo(_cost_sentence(cost))
    typer.echo(f"The hours are {cost.assumptions}. Texts are taken to be {cost.tokens} tokens long.")


def _cost_sentence(cost: Cost) -> str:
    unknown = sum(layer.gpu_hours is None for layer in cost.layers)
    left_out = f", without {unknown} layers of unknown size" if unknown else ""
    return (
        f"{cost.runs} runs of {cost.steps_a_run} steps, {cost.steps} steps together; with the paper's models about "
        f"{cost.gpu_hours:.1f} GPU hours{left_out} (estimated)"
    )


def _print_reproduction(done: Reproduction) -> None:
    from layerprobe.results import metric_title

    typer.echo(f"{metric_title(done.primary)} x 100 on {done.task}; paper: {done.source} of arXiv 2402.13130\n")
    columns = ("paper", "ours", "difference")
    header = ("model", "layer", *(f"{split} {what}" for split in ("validation", "test") for what in columns), "seeds")
    print_table(header, [_cells(layer, done.primary) for layer in done.layers])


def _cells(layer: ReproducedLayer, metric: Metric) -> tuple[str, ...]:
    cells = []
    for split in ("validation", "test"):
        score = layer.score(split, metric)
        cells += [
            "" if score.paper is None else f"{score.paper:.2f}",
            f"{score.mean:.2f}" if score.std is None else f"{score.mean:.2f} ± {score.std:.2f}",
            "" if score.difference is None else f"{score.difference:+.2f}",
        ]
    return (_ran(layer.model, layer.runs_model), str(layer.layer), *cells, str(len(layer.seeds)))


def _ran(model: str, other: str) -> str:
    return model if model == other else f"{model} = {other}"
