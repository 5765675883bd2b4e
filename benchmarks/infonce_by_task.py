"""What is InfoNCE worth on a second task? The same encoders, fine-tuned at every layer on two tasks.

    layerprobe lab run STUDY.toml              # a zoo's study, with another task: its encoders are made again
    python benchmarks/infonce_by_task.py STUDY/zoo.json [more zoos]

For every encoder of the given zoos that is also one of DropBench's: Spearman's correlation over layers of InfoNCE with
the mean test score, and the points lost at the layer of the default rule, on either task, each with the InfoNCE of its
own texts; and the correlation of the two curves of scores. Below are means with 95 % intervals by Student's t over
encoders, and what a nat of InfoNCE is worth to a search by either task and both (`fit_rules.py`),
with the log-likelihood that the worth in use has less than the best one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from blocks_or_depth import interval
from fit_rules import DEVIATIONS, SLOPES, evidence, log_likelihoods
from numpy.typing import NDArray
from scipy.stats import spearmanr

from layerprobe.lab.dropbench.zoo import ZooEntry, read_searched, read_zoo
from layerprobe.prediction.rule import ModelCurves, fitted_parameters
from layerprobe.prediction.rules import tuned_rule
from layerprobe.readings.reading import INFONCE

DEFAULT = "fall of InfoNCE"


def told(entry: ZooEntry, budget: str) -> tuple[NDArray[np.float64], float, float]:
    """Return the mean test score by layer, its correlation with InfoNCE, and what the default rule loses."""
    test = np.mean(entry.budgets[budget].test, axis=1)
    recommended = tuned_rule(DEFAULT)(ModelCurves(n_blocks=entry.n_blocks, curves=entry.curves))
    return test, float(spearmanr(entry.metrics[INFONCE].values, test).statistic), float(test.max() - test[recommended])


def worth(entries: Sequence[ZooEntry], budget: str) -> str:
    """Return what a nat is worth by the curves of some encoders."""
    choices = [(float(slope), float(sd)) for slope in SLOPES for sd in DEVIATIONS]
    sums = np.sum([log_likelihoods(evidence(entry, entry.budgets[budget]), choices) for entry in entries], axis=0)
    best, used = int(sums.argmax()), fitted_parameters()
    less = sums[best] - sums[choices.index((used.slope, used.slope_sd))]
    slope, sd = choices[best]
    return f"{slope:g} ± {sd:g} points a nat; {used.slope:g} ± {used.slope_sd:g} has {less:.1f} less"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", nargs="+")
    parser.add_argument("--budget", default="converged")
    options = parser.parse_args(arguments)
    recorded = {entry.name: entry for zoo in (read_zoo(), read_searched()) for entry in zoo.entries}
    second = [entry for zoo in options.zoo for entry in read_zoo(zoo).entries if entry.name in recorded]
    first = [recorded[entry.name] for entry in second]
    found = []
    print("encoder: InfoNCE with the scores, first and second task; points lost at its layer; the two curves of scores")
    for one, two in zip(first, second, strict=True):
        (scores, with_one, lost_one), (others, with_two, lost_two) = (
            told(one, options.budget),
            told(two, options.budget),
        )
        row = (with_one, with_two, lost_one, lost_two, float(spearmanr(scores, others).statistic))
        found.append(row)
        print(two.name, *(f"{value:.2f}" for value in row))
        print("   ", *(f"{score:.1f}" for score in others))
    print("mean", *(interval(list(column)) for column in zip(*found, strict=True)))
    print("first task:", worth(first, options.budget))
    print("second task:", worth(second, options.budget))
    print("both:", worth([*first, *second], options.budget))


if __name__ == "__main__":
    main()
