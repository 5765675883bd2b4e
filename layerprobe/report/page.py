"""A study as a page: what was found, how surely, and from what. Knows the order of its sections."""

from pathlib import Path

from layerprobe.finetuning.values import Confirmation
from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.page import write_page
from layerprobe.pages.parts import fill
from layerprobe.pages.values import Card, Page
from layerprobe.prediction.sentence import record_sentence
from layerprobe.report import words
from layerprobe.report.data import layer_csv
from layerprobe.report.sections.diagnostics import diagnostics
from layerprobe.report.sections.provenance import provenance
from layerprobe.report.sections.scores import baselines, fine_tuning, layers, zero_shot
from layerprobe.report.sections.similarity import cka_curve, cka_map, read_by_rule
from layerprobe.serialisation import to_json
from layerprobe.study.values import Study

BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}
TERMS = ("CKA", "Debiased", "Layer", "Drop layer", "TMFT", "Zero-shot")


def write_report(study: Study, path: str | Path) -> Path:
    """Write the report of a study as one HTML file and return its path; see `layerprobe.pages.page.write_page`."""
    return write_page(study_page(study), path)


def study_page(study: Study) -> Page:
    """Return the page of a study, verdict first."""
    comparisons = (study.comparison, *study.further_comparisons)
    record, uncertain = study.prediction.record, study.comparison.curve.uncertainty is not None
    return Page(
        title=words.title(study),
        overline=f"layerprobe · {study.provenance.task}",
        heading=_heading(study),
        lead=(study.prediction.sentence,),
        remarks=(*(() if record is None else (record_sentence(record),)), _verdict(study)),
        cards={"": _cards(study)},
        warnings=sum((comparison.warnings for comparison in comparisons), study.provenance.warnings),
        sections=(
            *(cka_curve(study), read_by_rule(study), cka_map(study), zero_shot(study), *fine_tuning(study)),
            *(layers(study), baselines(study), diagnostics(study)),
        ),
        provenance=provenance(study),
        terms=(*TERMS, *(("Interval, band", "Redraw") if uncertain else ())),
        data=to_json(study),
        data_label="Whole study",
        table=layer_csv(study),
        table_label="Table of layers",
        stem=words.file_stem(study),
    )


def _heading(study: Study) -> Markup:
    model, reference = words.names(study)
    against = (" ", element("span", "against", class_="against"), " ", reference)
    return join(model, *(() if study.comparison.alone else against))


def _verdict(study: Study) -> Markup:
    confirmation = study.confirmation
    if confirmation is None:
        badge = element("span", "– not confirmed yet", class_="badge open")
        said = fill("No layer has been fine-tuned", words.confirm_command(study))
    else:
        badge = element("span", BADGES[confirmation.verdict], class_=f"badge {confirmation.verdict}")
        said = (confirmation.sentence,)
    return element("p", badge, " ", *said, class_="verdict")


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
