"""layerprobe reproduce."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe_cli.options import CacheDir, Tuning
from layerprobe_cli.output import Output, print_json, print_table
from layerprobe_cli.tables import interval_text

if TYPE_CHECKING:
    from layerprobe.reproduction.cost import Cost, LayerCost
    from layerprobe.reproduction.differences import (
        ReproducedLayer,
        ReproducedPair,
        Reproduction,
        SimilarityReproduction,
    )
    from layerprobe.reproduction.paper import Before, Experiment


def reproduce(
    name: Annotated[
        str,
        typer.Argument(help="Experiment, such as table2; they are listed above.", metavar="NAME", show_default=False),
    ],
    output: Output,
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
        typer.Option(
            "--task", "-t", help="A copy of the data.", show_default="the data set on the Hub; sick and ko have none"
        ),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Files of scored word pairs, for table1: word similarity first, then TMFT.",
            show_default=False,
        ),
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Texts, for table1: domain adaptation first, then TMFT. Given again: further files.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    cache_dir: CacheDir = None,
) -> None:
    """Do an experiment of arXiv 2402.13130 again.

    Its figures are printed beside ours; finished runs are not repeated. table2, pareto: STSB at the layers of Table
    2; pareto adds which models no smaller one beats. table1: TMFT alone, with --words after word similarity, with
    --corpus after domain adaptation. figure2a: every layer of ELECTRA's base discriminator. figure3: CKA with BERT,
    without training. mrpc, sick, ko, de, es: the best and the last layer. random: random weights.

    Example:  [bold]layerprobe reproduce figure2a --dry-run[/bold]
    """
    from layerprobe.reproduction.cost import cost
    from layerprobe.reproduction.paper import experiment, planned_models, read_paper
    from layerprobe.tasks.loading import load_task
    from layerprobe.tasks.words import load_word_similarity

    chosen, replaced, seed_list = experiment(name), _replacements(models), Tuning(seeds=seeds).seed_list()
    planned, data = planned_models(chosen, replaced), read_paper().data_set(chosen.data)
    source = task or (None if dry_run else data.hub_id)
    if source is None and not dry_run:
        raise typer.BadParameter(f"expected --task with a copy of {data.name}, which is not read from the Hub")
    given = _given(chosen, words, corpus)
    loaded = None if source is None else load_task(source, kind=data.kind)
    pairs = None if words is None else load_word_similarity(words)
    estimate = cost(
        chosen if dry_run else chosen.after(given),
        planned,
        seeds=seed_list,
        train=None if loaded is None else len(loaded.train),
        words=None if pairs is None else len(pairs.train),
    )
    if dry_run or loaded is None:
        if output.json:
            print_json(estimate)
        else:
            _print_cost(estimate, given)
        return

    # only now: an error in the data needs no torch
    from layerprobe.encoders.options import Options
    from layerprobe.reproduction.differences import SimilarityReproduction
    from layerprobe.reproduction.run import reproduce as reproduce_experiment
    from layerprobe.tasks.corpus import load_corpus

    texts = load_corpus(corpus) if corpus else None
    of_pairs = ((), ()) if pairs is None else (pairs.notes, pairs.warnings)
    of_texts = () if texts is None else texts.warnings
    notes = [*loaded.notes, *of_pairs[0], _cost_sentence(estimate)]
    output.notes(notes, [*loaded.warnings, *of_pairs[1], *of_texts])
    options = Options(device=device, cache_dir=cache_dir)
    with output.progress() as progress:
        done = reproduce_experiment(
            name,
            loaded,
            models=replaced,
            words=pairs,
            corpus=texts,
            seeds=seed_list,
            options=options,
            progress=progress,
        )
    if output.json:
        print_json(done)
    elif isinstance(done, SimilarityReproduction):
        _print_similarity(done)
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


OPTIONS: dict[Before, tuple[str, str]] = {
    "word similarity": ("--words FOLDER", "50 epochs on scored word pairs in batches of 128"),
    "domain adaptation": (
        "--corpus FILE",
        "10 epochs of masked language modelling; the paper's texts are the sentences of SNLI and MultiNLI",
    ),
}
"""What gives the data of a step before TMFT, and what the step is."""


def _given(chosen: Experiment, words: Path | None, corpus: Sequence[Path] | None) -> tuple[Before, ...]:
    """Return the steps before TMFT whose data are given."""
    data: dict[Before, object] = {"word similarity": words, "domain adaptation": corpus}
    given = tuple(before for before, value in data.items() if value)
    for before in given:
        if before not in chosen.befores:
            option = OPTIONS[before][0].split()[0]
            raise typer.BadParameter(f"expected no {option} for {chosen.name}, which has no {before}")
    return given


def _print_needed(befores: Sequence[Before]) -> None:
    """Say which option gives the data of steps before TMFT."""
    for before in befores:
        option, what = OPTIONS[before]
        typer.echo(f"{before[0].upper()}{before[1:]} before TMFT is run with {option}: {what}.")


def _print_cost(cost: Cost, given: Collection[Before]) -> None:
    typer.echo(f"{cost.experiment}: {cost.title} ({cost.source} of arXiv 2402.13130)\n")
    print_table(
        ("model", "layer", "how", "parameters", "runs", "steps", "GPU hours"),
        [
            (
                _ran(layer.model, layer.runs_model),
                str(layer.layer),
                _how(layer, trained=cost.runs > 0),
                "" if layer.parameters is None else f"{layer.parameters:.2f} M",
                str(layer.runs),
                str(layer.steps),
                _hours(layer.gpu_hours),
            )
            for layer in cost.layers
        ],
    )
    how = cost.protocol
    if cost.runs:
        typer.echo(
            f"\n{cost.data}: {cost.train} training pairs; AdamW at {how.learning_rate:g}, "
            f"weight decay {how.weight_decay:g}, {how.epochs} epochs in batches of {how.batch_size}, "
            f"{100 * how.warmup:g} % warm-up, {how.pooling} pooling; "
            f"seeds {', '.join(map(str, cost.seeds))}"
        )
    else:
        typer.echo(f"\n{cost.data}: the texts of the test split; {how.pooling} pooling")
    typer.echo(_cost_sentence(cost))
    typer.echo(f"The hours are {cost.assumptions}. Texts are taken to be {cost.tokens} tokens long.")
    needed = dict.fromkeys(layer.before for layer in cost.layers if layer.before and layer.before not in given)
    if needed:
        typer.echo("")
        _print_needed(list(needed))
    _print_notes(cost.notes)


def _how(layer: LayerCost, *, trained: bool) -> str:
    if layer.random_init is not None:
        return f"TMFT of random weights, seed {layer.random_init}"
    if not trained:
        return "embed"
    return _steps(layer.before)


def _steps(before: Before | None) -> str:
    return f"{before}, then TMFT" if before else "TMFT"


def _hours(hours: float | None) -> str:
    if hours is None:
        return ""
    return f"{hours:.2f}" if hours >= 0.005 else "<0.01"


def _print_notes(notes: Sequence[str]) -> None:
    if notes:
        typer.echo("")
    for note in notes:
        typer.echo(f"note: {note}")


def _cost_sentence(cost: Cost) -> str:
    if not cost.runs:
        return f"Nothing is trained; with the paper's models {_hours(cost.gpu_hours)} GPU hours (estimated)"
    unknown = sum(layer.gpu_hours is None for layer in cost.layers)
    left_out = f", without {unknown} layers of unknown size" if unknown else ""
    steps = f"{cost.runs} runs of {cost.steps_a_run} steps, {cost.steps} steps together"
    if any(layer.before for layer in cost.layers):
        steps = f"{cost.runs} runs, {cost.steps} steps together"
    return f"{steps}; with the paper's models about {cost.gpu_hours:.1f} GPU hours{left_out} (estimated)"


# ---- results ------------------------------------------------------------------------------------------


def _print_reproduction(done: Reproduction) -> None:
    from layerprobe.metrics.names import metric_title

    typer.echo(f"{metric_title(done.primary)} x 100 on {done.task}; paper: {done.source} of arXiv 2402.13130\n")
    chains = any(layer.before for layer in done.layers)
    header = ["model", "layer", *(["how"] if chains else []), "split", "paper", "ours", "std", "interval"]
    header += ["difference", "in std", "by seed", "best seed"]
    rows = [
        [*_place_cells(layer, chains=chains), *_score_cells(layer, split, done.primary)]
        for layer in done.layers
        for split in ("validation", "test")
    ]
    print_table(header, rows)
    typer.echo(f"\n{done.sentence}")
    typer.echo("The best seed is the best by validation: it is named, and ours is the mean of all.")
    if done.front is not None:
        typer.echo(f"\nNo other is both smaller and better, by the paper: {_points(done.front.paper) or 'nothing'}")
        typer.echo(f"No other is both smaller and better, by ours: {_points(done.front.ours)}")
    if done.not_run:
        typer.echo("\nThe paper's figures of what was not run.")
        _print_needed(list(dict.fromkeys(one.before for one in done.not_run)))
        typer.echo("")
        print_table(
            ("model", "layer", "how", f"paper's test {metric_title(done.primary)}"),
            [(one.model, str(one.layer), _steps(one.before), f"{one.test[done.primary]:.2f}") for one in done.not_run],
        )
    _print_notes(done.notes)


def _place_cells(layer: ReproducedLayer, *, chains: bool) -> list[str]:
    random = "" if layer.random_init is None else f" (random weights, seed {layer.random_init})"
    how = [_steps(layer.before)] if chains else []
    return [_ran(layer.model, layer.runs_model) + random, str(layer.layer), *how]


def _score_cells(layer: ReproducedLayer, split: str, metric: str) -> tuple[str, ...]:
    score = layer.score(split, metric)
    return (
        split,
        "" if score.paper is None else f"{score.paper:.2f}",
        f"{score.mean:.2f}",
        "" if score.std is None else f"{score.std:.2f}",
        interval_text(score.interval),
        "" if score.difference is None else f"{score.difference:+.2f}",
        "" if score.deviations is None else f"{score.deviations:+.1f}",
        " ".join(f"{value:.2f}" for value in score.values),
        str(layer.best_seed),
    )


def _points(points: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} at layer {layer}" for name, layer in points)


def _print_similarity(done: SimilarityReproduction) -> None:
    typer.echo(
        f"{done.measure.title} by layer on {done.n_texts} texts of {done.task}; "
        f"paper: {done.source} of arXiv 2402.13130"
    )
    for pair in done.pairs:
        _print_pair(pair)
    typer.echo(f"\n{done.sentence}")
    _print_notes(done.notes)


def _print_pair(pair: ReproducedPair) -> None:
    paper = pair.paper
    model, reference = _ran(paper.model, pair.runs_model), _ran(paper.reference, pair.runs_reference)
    typer.echo(f"\n{model} with {reference}")
    fine_tuned = {paper.best_layer: f"{paper.best:.2f}", paper.last_layer: f"{paper.last:.2f}"}
    print_table(
        ("layer", "CKA", "95 % interval", "biased CKA", "flag", "paper's fine-tuned Spearman"),
        [
            (
                str(layer),
                f"{value:.4f}",
                f"{low:.4f} to {high:.4f}",
                f"{biased:.4f}",
                "drop" if layer in pair.drop_layers else "",
                fine_tuned.get(layer, ""),
            )
            for layer, (value, low, high, biased) in enumerate(
                zip(pair.curve, pair.lower, pair.upper, pair.biased, strict=True)
            )
        ],
    )
    typer.echo(pair.sentence)


def _ran(model: str, other: str) -> str:
    return model if model == other else f"{model} = {other}"
