"""What fine-tuning showed as a page: a search, a verdict, layers, a run."""

from collections.abc import Sequence
from typing import Any

from layerprobe.finetuning.values import (
    Confirmation,
    FineTuningRun,
    JointRun,
    LayerOutcome,
    TuningResult,
    best_by_validation,
    outcomes_table,
)
from layerprobe.metrics.names import metric_title
from layerprobe.names import times_as_fast
from layerprobe.report.facts import about, size_facts
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.markup import Markup, element
from layerprobe.results.page import page_of
from layerprobe.results.parts import folded, section, table_of
from layerprobe.results.shown import Shown, make_page
from layerprobe.results.values import Page, Section
from layerprobe.stats.values import Floor
from layerprobe.study.tables import runs_table
from layerprobe.study.values import Finding

BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}


def badge(verdict: str | None, sentence: str) -> Markup:
    """Return a verdict in a badge, and its sentence; None where nothing was tested."""
    label = BADGES.get(verdict or "", "– not tested")
    return element("p", element("span", label, class_=f"badge {verdict or 'open'}"), " ", sentence, class_="verdict")


# ---- a search -------------------------------------------------------------------------------------------


def finding_page(finding: Finding, *further: Shown, model: str = "", task: str = "") -> Page:
    """Return the page of a finding, with the model and task where known, and sections of further results."""
    runs = folded("All runs, in order", table_of(runs_table(finding)))
    return page_of(
        finding,
        kind="the layer to keep",
        about=about(model, task),
        facts=finding_facts(finding),
        warnings=finding.failures,
        account=account(finding),
        sections=(
            *((outcomes_section(finding.outcomes),) if finding.outcomes else ()),
            section("runs", "Runs", runs),
            *(section for result in further for section in make_page(result).sections),
        ),
    )


def finding_facts(finding: Finding) -> tuple[str, ...]:
    """Return the expected score, the size and the speed of the layer to keep."""
    answer, best = finding.answer, finding.best_layer
    if answer.spoilt:
        return ("no score is claimed: examples stand in two splits",)
    score = f"{metric_title(finding.primary)} {numbers.number(answer.layers[best].mean, 1)} expected on validation"
    ends = f"{score} {numbers.interval(answer.layers[best].interval, 1)}"
    speed = finding.speed(best)
    fast = () if speed is None or best == len(finding.parameters) - 1 else (times_as_fast(speed),)
    proof = finding.against_last
    proven = () if proof is None else (f"{BADGES[proof.verdict()]}: {numbers.signed(proof.value)} on test",)
    return (ends, *proven, *size_facts(finding.parameters, best), *fast)


def account(finding: Finding) -> tuple[str, ...]:
    """Return the test against the last layer, the drop, the doubts and the cost."""
    tested = finding.against_last is not None or finding.best_layer != finding.last_layer
    proved = badge(finding.proof_verdict, finding.proof_sentence) if tested else ""
    return tuple(filter(None, (proved, finding.drop_sentence, finding.doubt, finding.spent)))


# ---- layers ---------------------------------------------------------------------------------------------


def confirmation_page(confirmation: Confirmation) -> Page:
    """Return the page of a confirmed, refuted or undecided prediction."""
    return page_of(confirmation, kind="confirmation", facts=_score_and_size(confirmation.outcomes))


def result_page(result: TuningResult[Any]) -> Page:
    """Return the page of fine-tuned layers."""
    return page_of(
        result,
        kind="one run for all layers" if result.what == "scan" else "fine-tuned layers",
        about=about(result.model, result.task),
        facts=_score_and_size(result.outcomes),
    )


def _score_and_size(outcomes: Sequence[LayerOutcome]) -> tuple[str, ...]:
    best = best_by_validation(outcomes)
    ends = f" {numbers.interval(best.interval)}" if best.interval else ""
    score = f"test {metric_title(best.primary)} {numbers.number(best.mean)}{ends}"
    return (score, f"{numbers.millions(best.parameters)} parameters")


def outcomes_section(outcomes: Sequence[LayerOutcome], floor: Floor | None = None) -> Section:
    """Return the test scores after fine-tuning: every seed, and the mean with its interval."""
    table = outcomes_table(outcomes, floor)
    return section("outcomes", "After fine-tuning", drawn(table, table.charts[0]), table_of(table))


# ---- one run --------------------------------------------------------------------------------------------


def run_page(run: FineTuningRun) -> Page:
    """Return the page of one fine-tuning run: its loss and scores by epoch."""
    return page_of(run, kind="one run", facts=(f"{numbers.millions(run.parameters)} parameters",))


def joint_page(run: JointRun) -> Page:
    """Return the page of one scan: what its model scores at each layer."""
    facts = size_facts(run.parameters, run.best_layer)
    return page_of(run, kind="one run for all layers", about=f"seed {run.seed}", facts=facts)
