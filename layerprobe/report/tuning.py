"""What a search found as a page."""

from collections.abc import Iterator
from typing import Any

from layerprobe.files.serialisation import to_dict
from layerprobe.metrics.names import metric_title
from layerprobe.names import times_as_fast
from layerprobe.report.comparison import compared_models, curve_figure, diagnosed, last_and_fall, maps, provenance
from layerprobe.report.facts import about, models, size_facts
from layerprobe.report.prediction import baselines
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.markup import Markup, element
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.shown import Shown, make_page
from layerprobe.results.values import Page, Part, Section
from layerprobe.study.tables import finding_table, runs_table
from layerprobe.study.values import Finding

BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}


def badge(verdict: str | None, sentence: str) -> Markup:
    """Return a verdict in a badge, and its sentence; None where nothing was tested."""
    label = BADGES.get(verdict or "", "– not tested")
    return element("p", element("span", label, class_=f"badge {verdict or 'open'}"), " ", sentence, class_="verdict")


# ---- a search -------------------------------------------------------------------------------------------


def finding_page(finding: Finding, *further: Shown) -> Page:
    """Return the page of a finding, with what was known before training, and sections of further results."""
    order = "All runs, in order by model" if finding.others else "All runs, in order"
    return page_of(
        finding,
        kind="the layer to keep",
        about=about(" and ".join(finding.labels), finding.task),
        facts=finding_facts(finding),
        warnings=finding.failures,
        account=account(finding),
        sections=(
            section("runs", "Runs", folded(order, table_of(runs_table(finding)))),
            *before_training(finding),
            *(section for result in further for section in make_page(result).sections),
        ),
        provenance=found_by(finding),
    )


def before_training(finding: Finding) -> Iterator[Section]:
    """Yield what the rule reads, what simpler rules recommend, and the similarity to the references."""
    prediction = finding.prediction
    if prediction is not None:
        charts = (drawn(prediction.table, chart) for chart in prediction.table.charts[:-1])
        yield section("read", f"What the rule “{prediction.rule}” reads", *charts)
        ways = {"search (this page)": finding.best_layer, prediction.rule: prediction.recommended_layer}
        yield baselines(ways | prediction.baselines, finding_table(finding))
    if finding.comparison is not None:
        compared = compared_models([finding.comparison])
        curve = curve_figure(finding.comparison, "curve", last_and_fall(finding.comparison))
        yield section("curve", "Similarity to the reference, layer by layer", curve)
        yield from (maps(compared), diagnosed(compared))


def found_by(finding: Finding) -> tuple[Part, ...]:
    """Return the models, the data and the versions that a finding is from."""
    compared = None if finding.comparison is None else compared_models([finding.comparison])
    protocol: dict[str, Any] = next((to_dict(made.run.protocol) for made in finding.runs if made.run), {})
    facts = {
        "Task": f"{finding.task} ({finding.kind}, sha256 {finding.task_digest})",
        "Fine-tuning": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in protocol.items()) or None,
        "Versions": ", ".join(f"{name} {version}" for name, version in finding.versions.items()),
    }
    return (*(models(finding.model) if compared is None else provenance(compared)), definitions(facts))


def finding_facts(finding: Finding) -> tuple[str, ...]:
    """Return the expected score, the size and the speed of the layer to keep."""
    answer, best = finding.answer, finding.best_layer
    if answer.spoilt:
        return ("no score is claimed: examples stand in two splits",)
    score = f"{metric_title(finding.primary)} {numbers.number(answer.layers[best].mean, 1)} expected on validation"
    ends = f"{score} {numbers.interval(answer.layers[best].interval, 1)}"
    speed = finding.speed(best)
    fast = () if speed is None or best == finding.last_layer else (times_as_fast(speed),)
    proof = finding.against_last
    proven = () if proof is None else (f"{BADGES[proof.verdict]}: {numbers.signed(proof.value)} on test",)
    return (ends, *proven, *size_facts(finding.model.parameters, best), *fast)


def account(finding: Finding) -> tuple[str, ...]:
    """Return the test against the last layer, the drop, what was predicted, the doubts and the cost."""
    tested = finding.against_last is not None or finding.best_layer != finding.last_layer
    proved = badge(finding.proof_verdict, finding.proof_sentence) if tested else ""
    return tuple(filter(None, (proved, finding.drop_sentence, finding.expectation, finding.doubt, finding.spent)))
