"""layerprobe lab bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.shell import Done, PageCall


def bench(
    call: PageCall,
    zoo: Annotated[list[Path] | None, {"argument": True, "metavar": "[ZOO.json]..."}] = None,
    tuned: bool = False,
    searched: bool = False,
    unseen: bool = False,
    budget: Annotated[list[str] | None, {"flags": ("--budget", "-b")}] = None,
    entry: Annotated[list[str] | None, {"flags": ("--entry", "-e"), "metavar": "PACKAGE:STRATEGY"}] = None,
    level: float = LEVEL,
) -> Done:
    """Score ways to find the best layer where it is known.

    Strategies that train are played on recorded runs and pay for what they look at. Regret is the test score of the
    best layer less that of the chosen one, x 100; cost the share of the paper's sweep, every layer with five seeds. A
    rule with parameters is tuned on the other families than the one it is scored on; the best rule of the other
    families is chosen anew for each, so that its scores are not those of the luckiest of many rules.

    Example:  [bold]layerprobe lab bench --budget converged --report dropbench.html[/bold]

    Args:
        level: Confidence level of the intervals.
        zoo: Models whose drops are known from fine-tuning; several files are put together; `layerprobe lab run`
            writes them. By default the zoos that come with layerprobe.
        tuned: Score the rules as predict has them, tuned on the zoos that come with layerprobe: on the models of
            ZOO.json, or on some that come with layerprobe and were kept out of the tuning.
        searched: Play searches, too, on scanned models of 6 to 12 blocks that come with layerprobe, whose runs kept
            their outputs. Rules are as with --tuned.
        unseen: With --searched: leave out encoders (20 of 40) that the rules were tuned on, there on other pairs.
        budget: Budget of fine-tuning; can be given again. By default all.
        entry: Also play a strategy of another package, a function of a Trial; can be given again. The rules of entry
            are in research/contest.md.
    """
    from layerprobe.lab.dropbench.bench import bench_predictors, tuned_rules, unfitted_rules
    from layerprobe.lab.dropbench.door import load_entry
    from layerprobe.lab.dropbench.strategies import training_strategies
    from layerprobe.lab.dropbench.zoo import read_kept_out, read_searched, read_zoo

    if unseen and not searched:
        raise typer.BadParameter("expected --searched with --unseen")
    if searched and zoo:
        raise typer.BadParameter("expected files or --searched, got both")
    strategies = [*map(load_entry, entry or ()), *training_strategies()]
    tuned = tuned or searched
    if tuned and not zoo:
        models = read_searched(unseen=unseen) if searched else read_kept_out()
    else:
        models = read_zoo(*(zoo or ()))
    rules = [*tuned_rules(), *unfitted_rules(models.entries)] if tuned else None
    result = bench_predictors(models, rules=rules, strategies=strategies, budgets=budget or ())
    n_known = len(models.entries) - len(read_searched(unseen=True).entries) if searched else 0
    notes = ["rules with parameters were tuned on the other families"]
    if tuned:
        notes = ["the rules were tuned on the zoos that come with layerprobe"]
    if n_known:
        notes += [f"{n_known} of these encoders are there, too, fine-tuned on other pairs: --unseen leaves them out"]
    return Done(result=result, notes=notes)
