"""What was found, and how that compares with what was expected, in plain words. Knows studies; computes nothing."""

from layerprobe.errors import DataError
from layerprobe.names import in_percent, told_apart
from layerprobe.prediction.sentence import layer_span
from layerprobe.stats.sentences import keep_phrase, percents, points
from layerprobe.study.models import FoundModels
from layerprobe.study.values import Finding, Study


def headline(study: Study) -> str:
    """Return which layer to keep, as found, as tested or as expected: the start of a sentence."""
    if study.finding is not None:
        return study.finding.headline
    n_blocks, confirmation = study.comparison.model.n_blocks, study.confirmation
    if confirmation is None:
        expected = keep_phrase(study.prediction.recommended_layer, n_blocks)
        if study.prediction.drops:
            return f"Before training: look first at layer {study.prediction.recommended_layer} of {n_blocks}"
        return f"Predicted before training: {expected[0].lower()}{expected[1:]}"
    earlier, last = confirmation.compared_layers
    if confirmation.verdict == "undecided":
        return f"Layer {earlier} or layer {last} of {n_blocks}: not decided"
    dropped = study.prediction.drops == (confirmation.verdict == "confirmed")
    return keep_phrase(earlier if dropped else last, n_blocks)


def summary(study: Study) -> str:
    """Return the scores, the savings and the certainty behind the headline."""
    if study.finding is not None:
        return study.finding.rest
    return study.prediction.sentence if study.confirmation is None else study.confirmation.sentence


def proof_sentence(finding: Finding) -> str:
    """Return what comparing the layer to keep with the last one on the test split showed, or that it was not done."""
    best, last = finding.best_layer, len(finding.parameters) - 1
    if finding.against_last is not None:
        return finding.against_last.sentence
    if best == last:
        return "The layer to keep is already the last one: there is nothing to compare it with."
    return f"Layer {best} was not compared with the last layer, {last}, on the test split."


def found_drop_sentence(finding: Finding) -> str:
    """Return whether the last layers are worse than the best one, as found on validation."""
    settings, layers = finding.answer.settings, finding.drop_layers
    if finding.answer.spoilt:
        return ""
    far, sure = points(settings.tolerance), f"{in_percent(settings.level)} sure"
    if layers:
        they_are = "it is" if len(layers) == 1 else "they are"
        bare = [belief.layer for belief in finding.answer.layers[layers[0] :] if not belief.runs]
        rest = f"; {layer_span(bare)} had no run" if bare else ""
        return (
            f"On validation, scores drop at {layer_span(layers)}: {sure} that {they_are} more than {far} below the "
            f"best{rest}."
        )
    if _no_drop(finding):
        return f"On validation, scores do not drop: {sure} that the last layer is within {far} of the best."
    drop, level = finding.drop_chance, settings.level
    number = percents(drop)
    if 0.01 <= drop <= 0.99:
        number = f"{told_apart(100 * drop, 100 * level if drop > 0.5 else 100 - 100 * level, 0)}%"
    return (
        "On validation, it is unclear whether the last layers hurt: the chance that the last one is more than "
        f"{far} below the best is {number}."
    )


def expectation_sentence(study: Study) -> str:
    """Return what was expected before training, and where the search disagrees."""
    finding, prediction = study.finding, study.prediction
    if finding is None:
        raise DataError("expected a study with a search, got none: run it without --no-fine-tuning")
    flagged = f" first, {layer_span(prediction.drop_layers)} flagged" if prediction.drops else ", and no drop"
    predicted = f"Predicted before training: layer {prediction.recommended_layer}{flagged}."
    agreed = (
        prediction.recommended_layer in finding.answer.candidates,
        _tested(finding, prediction.drop_layers) == finding.drop_layers
        and (bool(finding.drop_layers) if prediction.drops else _no_drop(finding)),
    )
    if finding.answer.spoilt:
        return predicted
    verdict = "agrees" if all(agreed) else "agrees in part" if any(agreed) else "disagrees"
    return (
        f"{predicted} Training {verdict}: {_of_layer(finding, prediction.recommended_layer)}, and "
        f"{_of_drop(finding, prediction.drop_layers)}."
    )


def grounds(finding: Finding, study: Study | None = None) -> tuple[str, ...]:
    """Return the proof, whether the model drops, of a study what had been expected, and the cost: a line each."""
    proof = "" if finding.against_last is None else f"{finding.against_last.verdict.capitalize()}: "
    return (
        f"{proof}{proof_sentence(finding)}",
        *filter(None, (found_drop_sentence(finding),)),
        *(() if study is None else (expectation_sentence(study),)),
        " ".join(filter(None, (finding.spent, finding.doubt))),
    )


def grounds_of_models(models: FoundModels) -> tuple[str, ...]:
    """Return the proof, whether the model to keep drops, and the cost of the search of all: a line each."""
    label = models.labels[models.best_model]
    return *(f"{label}: {line}" for line in grounds(models.best)[:-1]), models.spent


def _of_layer(finding: Finding, expected: int) -> str:
    best, layers = finding.best_layer, finding.answer.layers
    if expected == best:
        return f"layer {expected} is the one to keep"
    if expected in finding.answer.candidates:
        return f"layer {expected} may be the best, as layer {best} may"
    less = layers[best].mean - layers[expected].mean
    return f"layer {expected} is {less:.1f} points below layer {best}"


def _of_drop(finding: Finding, flagged: tuple[int, ...]) -> str:
    drop, flagged = finding.drop_layers, _tested(finding, flagged)
    if drop:
        only = " only" if set(drop) < set(flagged) else ""
        return "the drop is as expected" if drop == flagged else f"a drop was found at {layer_span(drop)}{only}"
    return "no drop was found" if _no_drop(finding) else "it is unclear whether the last layer drops"


def _tested(finding: Finding, layers: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of some layers that were fine-tuned."""
    return tuple(layer for layer in layers if finding.answer.layers[layer].runs)


def _no_drop(finding: Finding) -> bool:
    """Return whether the last layer is surely within the tolerance of the best."""
    return finding.drop_chance <= 1 - finding.answer.settings.level
