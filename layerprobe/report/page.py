"""A study as a page: what was found, how surely, and from what. Knows the order of its sections."""

from pathlib import Path

from layerprobe.display import PlotlySource
from layerprobe.finetuning.values import Confirmation
from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.page import write_page
from layerprobe.pages.parts import fill
from layerprobe.pages.values import Card, Page, Section
from layerprobe.prediction.sentence import record_sentence
from layerprobe.report import words
from layerprobe.report.data import layer_csv
from layerprobe.report.sections.diagnostics import diagnostics
from layerprobe.report.sections.provenance import provenance
from layerprobe.report.sections.scores import baselines, fine_tuning, layers, zero_shot
from layerprobe.report.sections.search import expected, search
from layerprobe.report.sections.similarity import cka_curve, cka_map, read_by_rule
from layerprobe.search.sentence import kept_phrase
from layerprobe.serialisation import to_json
from layerprobe.study.sentence import proof_sentence
from layerprobe.study.values import AgainstLast, Finding, Study

SEARCH_TERMS = ("Expected score", "May be the best", "Tolerance", "Scan", "Block-step")
BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}
TERMS = ("CKA", "Debiased", "Layer", "Drop layer", "TMFT", "Zero-shot")


def write_report(study: Study, path: str | Path, *, plotly: PlotlySource = "embedded") -> Path:
    """Write the report of a study as one HTML file and return its path; see `layerprobe.pages.page.write_page`."""
    return write_page(study_page(study), path, plotly=plotly)


def study_page(study: Study) -> Page:
    """Return the page of a study: the layer to keep first, or without a search what is expected."""
    comparisons = (study.comparison, *study.further_comparisons)
    finding, uncertain = study.finding, study.comparison.curve.uncertainty is not None
    return Page(
        title=words.title(study),
        overline=_overline(study),
        heading=_heading(study),
        lead=(study.prediction.sentence if finding is None else _lead(finding),),
        remarks=_predicted(study) if finding is None else _found(finding),
        cards={"": _cards(study) if finding is None else _found_cards(study, finding)},
        warnings=sum((comparison.warnings for comparison in comparisons), study.provenance.warnings),
        sections=_sections(study),
        provenance=provenance(study),
        terms=(
            *(() if finding is None else SEARCH_TERMS),
            *TERMS,
            *(("Interval, band", "Redraw") if uncertain else ()),
        ),
        data=to_json(study),
        data_label="Whole study",
        table=layer_csv(study),
        table_label="Table of layers",
        stem=words.file_stem(study),
    )


def _sections(study: Study) -> tuple[Section, ...]:
    """Return the sections, what decides first; one without content is left out of the page."""
    similar = (cka_curve(study), read_by_rule(study), cka_map(study))
    scored, table = tuple(fine_tuning(study)), layers(study)
    if study.finding is None:
        return (*similar, zero_shot(study), *scored, table, baselines(study), diagnostics(study))
    return (
        *(search(study), *scored, table),
        *(expected(study), *similar, zero_shot(study), baselines(study), diagnostics(study)),
    )


def _overline(study: Study) -> str:
    about = () if study.finding is None else (words.title(study),)
    return " · ".join(("layerprobe", *about, study.provenance.task))


def _heading(study: Study) -> Markup:
    model, reference = words.names(study)
    if study.finding is not None:
        return join(element("span", f"{model}:", class_="against"), " ", kept_phrase(study.finding.answer).lower())
    against = (" ", element("span", "against", class_="against"), " ", reference)
    return join(model, *(() if study.comparison.alone else against))


def _lead(finding: Finding) -> str:
    """Return what to expect of the layer to keep, and which others it may be."""
    return f"Expected on validation: {finding.promise}. {finding.certainty}"


def _predicted(study: Study) -> tuple[str, ...]:
    """Return how far to trust the prediction, and what fine-tuning says of it."""
    record = study.prediction.record
    return (*(() if record is None else (record_sentence(record),)), _verdict(study))


def _found(finding: Finding) -> tuple[str, ...]:
    """Return the proof against the last layer, and what the answer cost."""
    proof = finding.against_last
    badge, kind = ("– not tested", "open") if proof is None else (BADGES[proof.verdict], proof.verdict)
    tested = element("span", badge, class_=f"badge {kind}"), " ", proof_sentence(finding)
    return element("p", *tested, class_="verdict"), finding.spent


def _verdict(study: Study) -> Markup:
    confirmation = study.confirmation
    if confirmation is None:
        badge = element("span", "– not confirmed yet", class_="badge open")
        said = fill("No layer has been fine-tuned", words.confirm_command(study))
    else:
        badge = element("span", BADGES[confirmation.verdict], class_=f"badge {confirmation.verdict}")
        said = (confirmation.sentence,)
    return element("p", badge, " ", *said, class_="verdict")


def _found_cards(study: Study, finding: Finding) -> tuple[Card, ...]:
    answer, model, best = finding.answer, study.comparison.model, finding.best_layer
    kept, whole, speed = model.parameters[best], model.parameters[-1], finding.speed(best)
    timed = "not measured" if speed is None else f"as fast as all {model.n_blocks} blocks"
    sure = numbers.percent(answer.settings.level)
    rivals = "" if len(answer.candidates) == 1 else f": {numbers.layer_range(answer.candidates)}"
    effect, shown = ("—", "not tested") if finding.against_last is None else _difference(finding.against_last)
    return (
        Card("Layer to keep", f"{best}", f"of {model.n_blocks}"),
        Card(
            "Parameters saved",
            numbers.percent(round(finding.saved(best), 2)),
            f"{numbers.millions(kept)} instead of {numbers.millions(whole)}",
        ),
        Card("Speed", "—" if speed is None else f"{speed:.1f}\u00a0×", timed),
        Card("Chance to be best", numbers.redrawn_share(answer.chance), f"{sure} sure{rivals}"),
        Card(f"Against layer {model.n_blocks}", effect, shown),
    )


def _difference(proof: AgainstLast) -> tuple[str, str]:
    """Return the difference to the last layer and how surely it is known."""
    each = proof.difference
    bounds = f"{numbers.percent(each.level)} {numbers.interval(each.interval)}"
    return numbers.signed(each.value), f"{metric_title(proof.primary)}\u00a0×\u00a0100 on test; {bounds}"


def _cards(study: Study) -> tuple[Card, ...]:
    prediction, model = study.prediction, study.comparison.model
    kept, whole = model.parameters[prediction.recommended_layer], model.parameters[-1]
    drop = f"onset at layer {prediction.onset}" if prediction.drops else "no decline found"
    if prediction.probability is not None:
        drop += f"; a drop in {numbers.redrawn_share(prediction.probability.any_drop)} of redraws"
    effect, shown = _effect(study.confirmation) if study.confirmation else ("—", "nothing fine-tuned yet")
    return (
        Card("Recommended layer", f"{prediction.recommended_layer}", f"of {model.n_blocks}"),
        Card(
            "Parameters saved",
            numbers.percent(1 - kept / whole),
            f"{numbers.millions(kept)} instead of {numbers.millions(whole)}",
        ),
        Card(f"Effect on {metric_title(study.metric)}\u00a0×\u00a0100", effect, shown),
        Card("Drop layers", numbers.layer_range(prediction.drop_layers) or "none", drop),
    )


def _effect(confirmation: Confirmation) -> tuple[str, str]:
    """Return the effect and how surely it is known."""
    first, second = confirmation.compared_layers
    level = f"{numbers.percent(confirmation.level)} " if confirmation.interval else ""
    detail = f"layer {first} less layer {second}; {level}{numbers.interval(confirmation.interval)}"
    return numbers.signed(confirmation.effect), detail
