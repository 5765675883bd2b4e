"""layerprobe bench-predictors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.output import Output, print_json, print_table

if TYPE_CHECKING:
    from layerprobe.dropbench.values import Bench, BudgetScores, RuleScores, Score


def bench_predictors(
    output: Output,
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
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", "-b", help="Budget of fine-tuning; can be given again.", show_default="all"),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = LEVEL,
) -> None:
    """Score ways to predict a drop where drops are known.

    A rule with parameters is tuned on the other families than the one it is scored on. Regret is the test score of the
    best layer less that of the recommended one, x 100; cost the share of the full sweep's training that the two layers
    of [bold]confirm[/bold] take. The best rule of the other families is chosen anew for each family, so that its scores
    are not those of the luckiest of many rules.

    Example:  [bold]layerprobe bench-predictors --budget converged[/bold]
    """
    from layerprobe.dropbench.bench import bench_predictors as bench
    from layerprobe.dropbench.tuned import tuned_rules
    from layerprobe.dropbench.zoo import read_kept_out, read_zoo

    models = read_kept_out() if tuned and not zoo else read_zoo(*(zoo or ()))
    table = bench(models, rules=tuned_rules() if tuned else None, budgets=budget or (), level=level)
    if output.json:
        print_json(table)
    else:
        _print_bench(table, tuned=tuned)


def _print_bench(table: Bench, *, tuned: bool) -> None:
    for number, scores in enumerate(table.budgets):
        typer.echo(f"{chr(10) if number else ''}Fine-tuning budget: {scores.budget}")
        drops = sum(truth.drop for truth in scores.truths.values())
        typer.echo(
            f"{drops} of {len(scores.truths)} models drop; families: {', '.join(table.families)}; "
            f"intervals redraw {scores.clusters}"
        )
        for labelled in (False, True):
            _print_rules(scores, labelled=labelled)
        for rule, reason in scores.left_out.items():
            typer.echo(f"Left out: {rule}: {reason}")
    parameters = "A rule with parameters was tuned on the other families."
    if tuned:
        parameters = "The rules were tuned on the zoos that come with layerprobe."
    typer.echo(
        f"\nIn brackets: {table.level:.0%} bootstrap intervals ({table.draws} draws). {parameters} Missing: models "
        "without what the rule reads, of which it calls no drop. Onset: mean error in layers where there is a drop."
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
