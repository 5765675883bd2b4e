"""The head of the page: what was found, how surely, and what a reader should be warned of."""

from __future__ import annotations

from layerprobe.finetuning.values import Confirmation
from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element
from layerprobe.pages.parts import CONFIRM_COMMAND, fill
from layerprobe.prediction.sentence import record_sentence
from layerprobe.report import words
from layerprobe.study.values import Study

BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}
NOT_CONFIRMED = "– not confirmed yet"


def header(study: Study) -> Markup:
    """Return the verdict: prediction, confirmation, numbers and warnings."""
    model, reference = words.names(study)
    against = (" ", element("span", "against", class_="against"), " ", reference)
    heading = element("h1", model, *(() if study.comparison.alone else against))
    return element(
        "header",
        element("p", f"layerprobe · {study.provenance.task}", class_="overline"),
        heading,
        element("p", study.prediction.sentence, class_="prediction"),
        None if study.prediction.record is None else element("p", record_sentence(study.prediction.record)),
        _confirmation_line(study.confirmation),
        _cards(study),
        _warnings(study),
    )


def _confirmation_line(confirmation: Confirmation | None) -> Markup:
    if confirmation is None:
        badge = element("span", NOT_CONFIRMED, class_="badge open")
        return element("p", badge, " ", *fill("No layer has been fine-tuned", CONFIRM_COMMAND), class_="verdict")
    badge = element("span", BADGES[confirmation.verdict], class_=f"badge {confirmation.verdict}")
    return element("p", badge, " ", confirmation.sentence, class_="verdict")


def _cards(study: Study) -> Markup:
    prediction, model = study.prediction, study.comparison.model
    kept = model.parameters[prediction.recommended_layer]
    cards = (
        _card("Recommended layer", f"{prediction.recommended_layer}", f"of {model.n_blocks}"),
        _card(
            "Parameters saved",
            numbers.percent(words.saved_share(study)),
            f"{numbers.millions(kept)} instead of {numbers.millions(model.parameters[-1])}",
        ),
        _effect_card(study),
        _drop_card(study),
    )
    return element("dl", *cards, class_="cards")


def _card(label: str, value: str, detail: str) -> Markup:
    return element("div", element("dt", label), element("dd", value, class_="value"), element("dd", detail))


def _effect_card(study: Study) -> Markup:
    confirmation = study.confirmation
    label = f"Effect on {metric_title(study.metric)}\u00a0×\u00a0100"
    if confirmation is None:
        return _card(label, "—", "nothing fine-tuned yet")
    first, second = confirmation.compared_layers
    level = f"{numbers.percent(confirmation.level)} " if confirmation.interval else ""
    detail = f"layer {first} less layer {second}; {level}{numbers.interval(confirmation.interval)}"
    return _card(label, numbers.signed(confirmation.effect), detail)


def _drop_card(study: Study) -> Markup:
    prediction = study.prediction
    detail = f"onset at layer {prediction.onset}" if prediction.drops else "no decline found"
    if prediction.probability is not None:
        detail += f"; a drop in {numbers.redrawn_share(prediction.probability.any_drop)} of redraws"
    return _card("Drop layers", numbers.layer_range(prediction.drop_layers) or "none", detail)


def _warnings(study: Study) -> Markup | None:
    comparisons = (study.comparison, *study.further_comparisons)
    said = [*study.provenance.warnings, *(line for comparison in comparisons for line in comparison.warnings)]
    if not said:
        return None
    items = (element("li", warning) for warning in dict.fromkeys(said))
    return element("aside", element("h2", "Warnings"), element("ul", *items), class_="warnings")
