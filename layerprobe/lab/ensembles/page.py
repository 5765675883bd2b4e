"""What an ensemble gains, as a page."""

from collections.abc import Iterator

from layerprobe.lab.ensembles.values import Ensemble, EnsembleCost
from layerprobe.metrics.names import metric_title
from layerprobe.names import listed
from layerprobe.results import numbers
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions
from layerprobe.results.values import Page
from layerprobe.stats.sentences import error_sources

CHOICES = {
    "line": "of two, the best of all from 0 and 1 to 1 and 0 in steps of 0.05",
    "pair": "every two, each with the best weights in steps of 0.05",
    "greedy": "forward selection with replacement, 20 additions (Caruana et al. 2004)",
}


def ensemble_page(result: Ensemble) -> Page:
    """Return the page of a weighted average of runs."""
    title, gain, cost, single = metric_title(result.primary), result.gain, result.cost, result.single_cost
    bounds = "no interval" if gain is None else numbers.interval(gain.interval)
    facts = {
        "Task": f"{result.task}, {result.kind}",
        "Weights": f"by {title} on the validation split: {CHOICES[result.choice]}",
        "Seeds": listed([str(seed) for seed in result.seeds]) if result.seeds else "of each member",
        "Interval": None if gain is None else error_sources(gain),
    }
    return page_of(
        result,
        heading=_heading(result),
        kind="ensemble",
        about=f"{' + '.join(member.label for member in result.used)} on {result.task}",
        lead=(result.sentence,),
        facts=(
            f"test {title} {numbers.number(result.score)}, gain "
            f"{numbers.signed(result.score - result.single_score)} {bounds}",
            f"{cost.blocks} blocks, {numbers.millions(cost.parameters)} parameters; the best single one "
            f"{single.blocks}, {numbers.millions(single.parameters)}",
            *_times(cost, single),
        ),
        provenance=(definitions(facts),),
        terms=("Ensemble",),
    )


def _heading(result: Ensemble) -> str:
    if len(result.used) == 1:
        return f"{result.used[0].label} alone scores highest: no ensemble"
    gained, open_ = result.score - result.single_score, result.gain is None or result.gain.sign == 0
    more = f"{numbers.number(abs(gained))} {'more' if gained >= 0 else 'less'}"
    return f"The average scores {more} than the best single one{', not significant' if open_ else ''}"


def _times(cost: EnsembleCost, single: EnsembleCost) -> Iterator[str]:
    if cost.seconds is not None and single.seconds is not None and cost.flops is not None and single.flops is not None:
        time, alone = (numbers.significant(1e3 * price) for price in (cost.seconds, single.seconds))
        flops, least = (numbers.significant(price / 1e9) for price in (cost.flops, single.flops))
        yield f"{time} ms for a text of {cost.length} tokens, {alone} alone"
        yield f"{flops} GFLOPs per text, {least} alone"
