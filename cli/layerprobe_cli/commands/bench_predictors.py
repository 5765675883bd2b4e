"""layerprobe bench-predictors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Report
from layerprobe_cli.output import Output, print_table

if TYPE_CHECKING:
    from layerprobe.lab.dropbench.values import Bench, BudgetScores, RuleScores, Score

MOST = 12
"""Curves that are printed without --all."""


def bench_predictors(
    output: Output,
    report: Report,
    zoo: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[ZOO.json]...",
            help="Models whose drops are known from fine-tuning; several files are put together.",
            show_default="the zoos that come with layerprobe",
        ),
    ] = None,
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned",
            help="Score the rules as predict has them, tuned on the zoos that come with layerprobe: on the models of "
            "ZOO.json, or on some that come with layerprobe and were kept out of the tuning.",
        ),
    ] = False,
    searched: Annotated[
        bool,
        typer.Option(
            "--searched",
            help="Play searches, too, on scanned models of 6 to 12 blocks that come with layerprobe, whose runs kept "
            "their outputs. Rules are as with --tuned.",
        ),
    ] = False,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", "-b", help="Budget of fine-tuning; can be given again.", show_default="all"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all rules and curves, and how each rule calls drops.")
    ] = False,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = LEVEL,
) -> None:
    """Score ways to find the best layer where it is known.

    Strategies that train are played on recorded runs and pay for what they look at. Regret is the test score of the
    best layer less that of the chosen one, x 100; cost the share of the paper's sweep, every layer with five seeds. A
    rule with parameters is tuned on the other families than the one it is scored on; the best rule of the other
    families is chosen anew for each, so that its scores are not those of the luckiest of many rules.

    Example:  [bold]layerprobe bench-predictors --budget converged --report dropbench.html[/bold]
    """
    from layerprobe.lab.dropbench.bench import bench_predictors as bench
    from layerprobe.lab.dropbench.tuned import tuned_rules
    from layerprobe.lab.dropbench.zoo import read_kept_out, read_searched, read_zoo

    if searched and zoo:
        raise typer.BadParameter("expected files or --searched, got both")
    tuned = tuned or searched
    kept_out = read_searched if searched else read_kept_out
    models = kept_out() if tuned and not zoo else read_zoo(*(zoo or ()))
    with output.progress() as progress:
        rules = tuned_rules() if tuned else None
        table = bench(models, rules=rules, budgets=budget or (), level=level, progress=progress)
    output.result(table, functools.partial(_print_bench, tuned=tuned, everything=everything))
    report.write(output, table)


def _print_bench(table: Bench, *, tuned: bool, everything: bool) -> None:
    for number, scores in enumerate(table.budgets):
        typer.echo(f"{chr(10) if number else ''}Fine-tuning budget: {scores.budget}")
        drops = sum(truth.drop for truth in scores.truths.values())
        typer.echo(
            f"{drops} of {len(scores.truths)} models drop; families: {', '.join(table.families)}; "
            f"intervals redraw {scores.clusters}"
        )
        _print_strategies(scores, everything=everything)
        _print_detection(scores, everything=everything)
        if everything:
            typer.echo("\nHow each rule calls drops:")
            for labelled in (False, True):
                _print_rules(scores, labelled=labelled)
            for rule, reason in scores.left_out.items():
                typer.echo(f"Left out: {rule}: {reason}")
    parameters = "A rule with parameters was tuned on the other families."
    if tuned:
        parameters = "The rules were tuned on the zoos that come with layerprobe."
    typer.echo(
        f"\nIn brackets: {table.level:.0%} bootstrap intervals ({table.draws} draws). {parameters} Regret: points "
        "below the best layer on the test items; crossed: below the layer that other seeds choose on other items; "
        "held: chance that the stated set holds the best layer; enough: chance that the smallest layer said to be "
        "within half a point of it is so. *: scored on seeds that it looked at."
    )
    if everything:
        typer.echo(
            "Missing: models without what the rule reads, of which it calls no drop. Onset: mean error in layers where "
            "there is a drop. Cost there: of the two layers of confirm."
        )


def _print_strategies(scores: BudgetScores, *, everything: bool) -> None:
    from layerprobe.lab.dropbench.bench import shown_strategies

    shown = shown_strategies(scores, everything=everything)
    header = ("strategy", "needs", "models", "regret", "items", "seeds", "median", "90%", "worst", "crossed", "cost")
    rows = [
        (
            f"{each.strategy}{'' if each.fresh else ' *'}",
            each.needs,
            str(len(each.outcomes)),
            _cell(each.mean),
            *("" if error is None else f"{error:.2f}" for error in (each.items_error, each.seeds_error)),
            *(f"{value:.2f}" for value in (each.median.value, each.ninth.value, each.worst)),
            _cell(each.regret),
            f"{each.cost.value:.1%}",
            "" if each.coverage is None else f"{each.coverage.value:.0%}",
            "" if each.set_size is None else f"{each.set_size:.1f}",
            "" if each.sufficient is None else f"{each.sufficient.value:.0%}",
            each.source,
        )
        for each in shown
    ]
    typer.echo("")
    print_table((*header, "held", "in set", "enough", "source"), rows)
    if len(shown) < len(scores.strategies):
        typer.echo(f"{len(scores.strategies) - len(shown)} more rules with --all.")


def _print_detection(scores: BudgetScores, *, everything: bool) -> None:
    most = None if everything else MOST
    typer.echo("\nWhat tells a drop, by its fall to the last layer:")
    print_table(
        ("curve", "needs", "models", "drops", "area", "precision", "recall", "with effect"),
        [
            (
                each.detector,
                each.needs,
                str(each.models),
                str(each.drops),
                *map(_cell, (each.area, each.precision, each.recall)),
                "" if each.effect is None else f"{each.effect:.2f}",
            )
            for each in scores.detectors[:most]
        ],
    )
    typer.echo("\nSpearman's correlation with the test scores of a model's layers:")
    print_table(
        ("curve", "needs", "models", "mean", "median"),
        [
            (each.curve, each.needs, str(each.models), _cell(each.mean), _cell(each.median))
            for each in scores.curves[:most]
        ],
    )
    if scores.joint:
        typer.echo("\nModels of scans, cut at a layer, less TMFT there, in points:")
        print_table(
            ("weighting", "models", "best layer", "last layer", "all layers"),
            [
                (each.weighting, str(each.models), *map(_cell, (each.at_best, each.at_last, each.overall)))
                for each in scores.joint
            ],
        )


def _print_rules(scores: BudgetScores, *, labelled: bool) -> None:
    rules = [rule for rule in scores.rules if rule.labelled == labelled]
    if not rules:
        return
    typer.echo(f"\nWith{'' if labelled else 'out'} labels:")
    header = ("rule", "parameters", "missing", "precision", "recall", "F1", "onset", "regret", "median", "cost")
    print_table(header, [_cells(rule) for rule in rules])


def _cells(rule: RuleScores) -> tuple[str, ...]:
    return (
        rule.rule,
        str(rule.parameters),
        str(rule.missing),
        *map(_cell, (rule.precision, rule.recall, rule.f1, rule.onset_error)),
        *map(_cell, (rule.mean_regret, rule.median_regret, rule.cost)),
    )


def _cell(score: Score | None) -> str:
    if score is None:
        return ""
    if score.lower is None or score.upper is None:
        return f"{score.value:.2f}"
    return f"{score.value:.2f} [{score.lower:.2f}, {score.upper:.2f}]"
