"""The search for the layer to keep: the answer as a figure, the runs that gave it, and what had been expected."""

from layerprobe.prediction.sentence import record_sentence
from layerprobe.report import words
from layerprobe.report.figures import search as figures
from layerprobe.results.parts import folded, section, table_of
from layerprobe.results.values import Figure, Section
from layerprobe.study.sentence import expectation_sentence, found_drop_sentence
from layerprobe.study.tables import runs_table
from layerprobe.study.values import Finding, Study


def search(study: Study) -> Section:
    """Return the curve of the search with the runs behind it; nothing without a search."""
    heading, finding = "How confident is this choice?", study.finding
    if finding is None:
        return section("search", heading)
    if finding.answer.spoilt:
        heading = "What was searched"
    found, reading = words.search_finding(finding), words.search_reading(finding)
    left = " ".join(filter(None, (found_drop_sentence(finding), finding.doubt)))
    runs = folded("All runs, in order", table_of(runs_table(finding)))
    return section("search", heading, Figure("search", figures.search(study), found, reading), left, runs)


def search_terms(finding: Finding) -> tuple[str, ...]:
    """Return the words of a search that a page explains."""
    return "Expected score", "May be the best", "Tolerance", *(("Scan",) if finding.scans else ()), "Block-step"


def expected(study: Study) -> Section:
    """Return what was expected before training, and where the search disagrees; nothing without a search."""
    heading, prediction = "What was predicted before training", study.prediction
    if study.finding is None:
        return section("expected", heading)
    record = None if prediction.record is None else record_sentence(prediction.rule, prediction.record)
    grounds = " ".join(filter(None, (prediction.sentence, record)))
    return section("expected", heading, expectation_sentence(study), grounds)
