"""A study as a page: what was found, how sure it is, and from what. Knows the order of its sections."""

from dataclasses import replace

from layerprobe.finetuning.values import Confirmation
from layerprobe.metrics.names import metric_title
from layerprobe.names import listed, times_as_fast
from layerprobe.prediction.sentence import trusted
from layerprobe.report import words
from layerprobe.report.sections.diagnostics import diagnostics
from layerprobe.report.sections.next import next_steps
from layerprobe.report.sections.provenance import provenance
from layerprobe.report.sections.scores import baselines, fine_tuning, layers, zero_shot
from layerprobe.report.sections.search import expected, search, search_terms
from layerprobe.report.sections.similarity import cka_curve, cka_map, read_by_rule
from layerprobe.results import glossary, numbers
from layerprobe.results.markup import Markup, element
from layerprobe.results.values import Card, Figure, Page, Section
from layerprobe.study.sentence import headline, proof_sentence, summary
from layerprobe.study.values import AgainstLast, Finding, Study

BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}
TERMS = ("CKA", "Debiased", "Layer", "Drop layer", "TMFT", "Zero-shot")


def study_page(study: Study) -> Page:
    """Return the page of a study: which layer to keep, the figure that shows it, and what that rests on."""
    comparisons, finding = (study.comparison, *study.further_comparisons), study.finding
    first, sections = _hoisted(_sections(study), _decisive(study))
    return Page(
        title=words.title(study),
        overline=" · ".join(("layerprobe", words.title(study), study.provenance.task)),
        heading=headline(study),
        lead=(summary(study),),
        first=first,
        remarks=(*(_predicted(study) if finding is None else _found(finding)), _link_to_next(finding)),
        cards={"": _cards(study) if finding is None else _found_cards(study, finding)},
        warnings=sum((comparison.warnings for comparison in comparisons), study.provenance.warnings),
        sections=sections,
        provenance=provenance(study),
        terms=_terms(study),
        result=study,
        data_label="Whole study",
        stem=words.file_stem(study),
    )


def _terms(study: Study) -> tuple[str, ...]:
    """Return the words to explain, what decided first."""
    read = {name.lower() for name in study.prediction.read}
    return (
        *(() if study.finding is None else search_terms(study.finding)),
        *(term for term in glossary.TERMS if term.lower() in read),
        *TERMS,
        *(() if study.comparison.curve.uncertainty is None else ("Interval, band", "Bootstrap")),
        *(() if study.prediction.record is None else ("Regret", "False alarm")),
    )


def _sections(study: Study) -> tuple[Section, ...]:
    """Return the sections, what decides first; one without content is left out of the page."""
    similar = (cka_curve(study), read_by_rule(study.prediction, study), cka_map(study))
    scored, table = tuple(fine_tuning(study)), layers(study)
    if study.finding is None:
        parts = (*similar, zero_shot(study), *scored, table, baselines(study), diagnostics(study))
    else:
        parts = (
            *(search(study), *scored, table),
            *(expected(study), *similar, zero_shot(study), baselines(study), diagnostics(study)),
        )
    return (*parts, next_steps(study))


def _decisive(study: Study) -> str:
    """Return the name of the figure that shows why: of the search, of fine-tuning, or of what the rule read."""
    if study.finding is not None:
        return "search"
    if study.outcomes:
        return "tmft"
    return "read" if study.prediction.read else "cka-curve"


def _hoisted(sections: tuple[Section, ...], name: str) -> tuple[Figure, tuple[Section, ...]]:
    """Return the figure of a name, and the sections without it."""
    figures = {part.name: part for section in sections for part in section.parts if isinstance(part, Figure)}
    first = figures[name]
    return first, tuple(
        replace(section, parts=tuple(part for part in section.parts if part is not first)) for section in sections
    )


def _predicted(study: Study) -> tuple[str, ...]:
    """Return what fine-tuning says of the prediction, and how far to trust the rule."""
    prediction = study.prediction
    said = () if study.confirmation is None else (prediction.sentence,)
    return (_verdict(study), *said, *trusted(prediction)[1:])


def _found(finding: Finding) -> tuple[str, ...]:
    """Return the proof against the last layer, where another one is kept, and what the answer cost."""
    proof = finding.against_last
    if proof is None and finding.best_layer == len(finding.parameters) - 1:
        return (finding.spent,)
    badge, kind = ("– not tested", "open") if proof is None else (BADGES[proof.verdict], proof.verdict)
    tested = element("span", badge, class_=f"badge {kind}"), " ", proof_sentence(finding)
    return element("p", *tested, class_="verdict"), finding.spent


def _link_to_next(finding: Finding | None) -> Markup:
    said = "fine-tune, and find the layer" if finding is None else "export the model, and serve it"
    return element("p", element("a", f"What to do next: {said}", href="#next"))


def _verdict(study: Study) -> Markup:
    confirmation = study.confirmation
    if confirmation is None:
        badge = element("span", "– not confirmed yet", class_="badge open")
        said = ("No layer has been fine-tuned: this is what is expected before any training.",)
    else:
        badge = element("span", BADGES[confirmation.verdict], class_=f"badge {confirmation.verdict}")
        said = (f"Fine-tuned at layers {listed([outcome.layer for outcome in study.outcomes], 'and')}.",)
    return element("p", badge, " ", *said, class_="verdict")


def _found_cards(study: Study, finding: Finding) -> tuple[Card, ...]:
    answer, model, best = finding.answer, study.comparison.model, finding.best_layer
    if answer.spoilt:
        return (Card("Expected score", "—", "not claimed: examples stand in two splits"),)
    known, level = answer.layers[best], numbers.confidence(answer.settings.level)
    rivals = "" if len(answer.candidates) == 1 else f": {numbers.layer_range(answer.candidates)}"
    sure = (
        Card("Expected score", numbers.number(known.mean, 1), f"on validation; {level} {_ends(known.interval)}"),
        Card("Chance to be best", numbers.redrawn_share(answer.chance), f"{level} sure{rivals}"),
    )
    if best == model.n_blocks:
        return sure
    kept, whole, speed = model.parameters[best], model.parameters[-1], finding.speed(best)
    fast = "—" if speed is None else times_as_fast(speed).replace(" times as fast", "")
    timed = "not measured" if speed is None else f"as all {model.n_blocks} blocks, on the same texts"
    effect, shown = ("—", "not tested") if finding.against_last is None else _difference(finding.against_last)
    return (
        Card(f"Compared with layer {model.n_blocks}", effect, shown),
        Card(
            "Parameters saved",
            numbers.percent(round(finding.saved(best), 2)),
            f"{numbers.millions(kept)} instead of {numbers.millions(whole)}",
        ),
        Card("Times as fast", fast, timed),
        *sure,
    )


def _ends(interval: tuple[float, float]) -> str:
    return numbers.interval(interval, 1)


def _difference(proof: AgainstLast) -> tuple[str, str]:
    """Return the difference to the last layer and how certain it is."""
    each = proof.difference
    bounds = f"{numbers.confidence(each.level)} {numbers.interval(each.interval)}"
    return numbers.signed(each.value), f"{metric_title(proof.primary)}\u00a0×\u00a0100 on test; {bounds}"


def _cards(study: Study) -> tuple[Card, ...]:
    prediction, model = study.prediction, study.comparison.model
    kept, whole = model.parameters[prediction.recommended_layer], model.parameters[-1]
    drop = f"from layer {prediction.onset} on" if prediction.drops else "no decline found"
    if prediction.same is not None:
        drop += f"; the same layer in {numbers.redrawn_share(prediction.same)} of bootstrap samples"
    effect, shown = _effect(study.confirmation) if study.confirmation else ("—", "nothing fine-tuned yet")
    return (
        Card("Recommended layer", f"{prediction.recommended_layer}", f"of {model.n_blocks}"),
        Card(
            "Parameters saved",
            numbers.percent(1 - kept / whole),
            f"{numbers.millions(kept)} instead of {numbers.millions(whole)}",
        ),
        Card(f"Effect on {metric_title(study.metric)}\u00a0×\u00a0100", effect, shown),
        Card("Flagged layers", numbers.layer_range(prediction.drop_layers) or "none", drop),
    )


def _effect(confirmation: Confirmation) -> tuple[str, str]:
    """Return the effect and how certain it is."""
    first, second = confirmation.compared_layers
    level = f"{numbers.confidence(confirmation.level)} " if confirmation.interval else ""
    detail = f"layer {first} minus layer {second}; {level}{numbers.interval(confirmation.interval)}"
    return numbers.signed(confirmation.effect), detail
