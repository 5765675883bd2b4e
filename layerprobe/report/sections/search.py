"""The search for the layer to keep: the answer as a figure, the runs that gave it, and what had been expected."""

from collections.abc import Iterator
from itertools import groupby

from layerprobe.metrics.names import metric_title
from layerprobe.prediction.sentence import record_sentence
from layerprobe.report import words
from layerprobe.report.figures import search as figures
from layerprobe.results import numbers
from layerprobe.results.parts import Row, folded, section, table
from layerprobe.results.values import Figure, Section
from layerprobe.study.sentence import expectation_sentence, found_drop_sentence
from layerprobe.study.values import Finding, Study


def search(study: Study) -> Section:
    """Return the curve of the search with the runs behind it; nothing without a search."""
    heading, finding = "How surely it is this layer", study.finding
    if finding is None:
        return section("search", heading)
    found, reading = words.search_finding(finding), words.search_reading(finding)
    left = " ".join(filter(None, (found_drop_sentence(finding), finding.doubt)))
    runs = folded("The runs, in the order in which they were made", table("Runs", run_rows(finding)))
    return section("search", heading, Figure("search", figures.search(study), found, reading), left, runs)


def search_terms(finding: Finding) -> tuple[str, ...]:
    """Return the words of a search that a page explains."""
    return "Expected score", "May be the best", "Tolerance", *(("Scan",) if finding.scans else ()), "Block-step"


def run_rows(finding: Finding) -> Iterator[Row]:
    """Yield the runs of a search in the order in which they were made, with what they cost."""
    title, spent = metric_title(finding.primary), 0
    # a scan is one run of many layers
    made = groupby(finding.runs, key=lambda each: (each.scan, each.run.seed, None if each.scan else each.run.layer))
    for number, ((scan, seed, _), layers) in enumerate(made, start=1):
        first, *others = layers
        best = max((first, *others), key=lambda each: each.run.validation[finding.primary]).run
        cost = len(finding.parameters) if scan else best.layer + 1
        spent += cost
        where = f" at layer {best.layer}" if scan else ""
        yield (
            ("Run", str(number)),
            ("What", "scan" if scan else "TMFT"),
            ("Layer", "all" if scan else str(best.layer)),
            ("Seed", str(seed)),
            *((("Part", str(first.fold + 1)),) if finding.n_folds > 1 else ()),
            (f"Validation {title}", f"{numbers.number(best.validation[finding.primary])}{where}"),
            (f"Test {title}", f"{numbers.number(best.test[finding.primary])}{where}"),
            ("Seconds", numbers.number(best.seconds, 0)),
            ("Block-steps", str(cost)),
            ("Spent of a sweep", numbers.percent(spent / finding.answer.full_sweep)),
        )


def expected(study: Study) -> Section:
    """Return what was expected before training, and where the search disagrees; nothing without a search."""
    heading, prediction = "What was expected before training", study.prediction
    if study.finding is None:
        return section("expected", heading)
    record = None if prediction.record is None else record_sentence(prediction.record)
    grounds = " ".join(filter(None, (prediction.sentence, record)))
    return section("expected", heading, expectation_sentence(study), grounds)
