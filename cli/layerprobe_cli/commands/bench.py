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
    """Score strategies that choose a layer, on models whose best layer is known.

    Strategies that train are simulated on recorded runs, and pay for each run that they use. Regret is the test score
    of the best layer less that of the chosen one, x 100; cost is the share of the paper's sweep, every layer with five
    seeds. The parameters of a rule are tuned on the other families than the one it is scored on. The best rule is also
    chosen on the other families, so that its scores are not those of the luckiest of many rules.

    Example:  [bold]layerprobe lab bench --budget converged --report dropbench.html[/bold]

    Args:
        level: Confidence level of the intervals.
        zoo: Models whose drops are known from fine-tuning, as `layerprobe lab run` writes them. Repeat for further
            files. By default the zoos that come with layerprobe.
        tuned: Score the rules as `predict` uses them, tuned on the zoos that come with layerprobe: on the models of
            ZOO.json, or on models that were kept out of the tuning.
        searched: Also score searches, on scanned models of 6 to 12 blocks that come with layerprobe with the outputs of
            their runs. Rules are those of --tuned.
        unseen: With --searched: leave out the 20 of 40 encoders that rules were tuned on, with other pairs.
        budget: Budget of fine-tuning. Repeat for several. By default all.
        entry: Also score a strategy of another package, a function of a Trial. Repeat for several. The rules of entry
            are in research/contest.md.
    """
    from layerprobe.lab.dropbench.bench import bench_predictors, tuned_rules, unfitted_rules
    from layerprobe.lab.dropbench.strategies import load_entry, training_strategies
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
