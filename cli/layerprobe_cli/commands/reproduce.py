"""layerprobe lab reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe_cli.completion import names_of
from layerprobe_cli.options import CacheDir, Device, Tuning
from layerprobe_cli.output import Output


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="Experiment, such as table2; they are listed above.",
            metavar="NAME",
            autocompletion=names_of("layerprobe.lab.reproduction.paper:experiment_names"),
        ),
    ],
    output: Output,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what is run and what it costs; no model, no network.")
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
        typer.Option(
            "--task", "-t", help="A copy of the data.", show_default="the data set on the Hub; sick and ko have none"
        ),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Files of scored word pairs, for table1: word similarity first, then TMFT."
        ),
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Texts, for table1: domain adaptation first, then TMFT. Given again: further files."
        ),
    ] = None,
    device: Device = "auto",
    cache_dir: CacheDir = None,
) -> None:
    """Do an experiment of arXiv 2402.13130 again.

    Its figures are printed beside ours; finished runs are not repeated. table2, pareto: STSB at the layers of Table
    2; pareto adds which models no smaller one beats. table1: TMFT alone, with --words after word similarity, with
    --corpus after domain adaptation. figure2a: every layer of ELECTRA's base discriminator. figure3: CKA with BERT,
    without training. mrpc, sick, ko, de, es: the best and the last layer. random: random weights.

    Example:  [bold]layerprobe lab reproduce figure2a --dry-run[/bold]
    """
    from layerprobe.kinds.sentences.word_similarity import load_word_similarity
    from layerprobe.lab.reproduction.paper import experiment, plan_experiment, read_paper, run_models
    from layerprobe.tasks.loading import load_task

    chosen, in_place, seed_list = experiment(name), _in_place(models), Tuning(seeds=seeds).seed_list()
    data = read_paper().data_set(chosen.data)
    source = task or (None if dry_run else data.hub_id)
    if source is None and not dry_run:
        raise typer.BadParameter(f"expected --task with a copy of {data.name}, which is not read from the Hub")
    chosen.check_first_steps({"word similarity": words, "domain adaptation": corpus})
    loaded = None if source is None else load_task(source, kind=data.kind)
    pairs = None if words is None else load_word_similarity(words)
    if dry_run or loaded is None:
        train, of_words = (None if each is None else len(each.train) for each in (loaded, pairs))
        run = run_models(chosen, in_place)
        plan = plan_experiment(chosen, run, seeds=seed_list, train=train, words=of_words, corpus=bool(corpus))
        output.result(plan, plan.table.titled)
        return

    # only now: an error in the data needs no torch
    from layerprobe.encoders.model import Options
    from layerprobe.lab.reproduction.run import reproduce as reproduce_experiment
    from layerprobe.tasks.loading import load_corpus

    texts = load_corpus(corpus) if corpus else None
    tasks = [each for each in (loaded, pairs) if each is not None]
    warnings = [*(line for each in tasks for line in each.warnings), *(texts.warnings if texts else ())]
    output.notes([line for each in tasks for line in each.notes], warnings)
    with output.progress():
        done = reproduce_experiment(
            name,
            loaded,
            models=in_place,
            words=pairs,
            corpus=texts,
            seeds=seed_list,
            options=Options(device=device, cache_dir=cache_dir),
        )
    output.result(done, done.table.titled)


def _in_place(models: str | None) -> dict[str, str] | None:
    """Return what `ID,ID=OTHER` says: a model of the paper to what is run in its place."""
    if models is None:
        return None
    pairs = [part.strip().partition("=") for part in models.split(",")]
    if not all(model and (other or not equals) for model, equals, other in pairs):
        raise typer.BadParameter(f"expected ID or ID=OTHER, joined by commas, for --models, got {models!r}")
    return {model: other or model for model, _, other in pairs}
