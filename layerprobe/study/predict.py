"""A prediction of the layer to keep, and reasons to doubt it, from a model and a task or texts. Nothing is trained.

The command line, pages and notebooks call `predict`; `find` applies the same rule to its own readings.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from layerprobe.checks import LEVEL, check_choice
from layerprobe.comparison.compare import compare_all
from layerprobe.comparison.values import Comparison
from layerprobe.context import EMBEDDED, in_parts, part, settings
from layerprobe.encoders.identity import ModelLike, Resolved, resolve_all
from layerprobe.encoders.in_memory import is_loaded
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Extraction, data_quality
from layerprobe.files.images import readable_as
from layerprobe.metrics.names import metric_title
from layerprobe.names import distinct_names
from layerprobe.prediction.rule import ModelCurves, Rule, fixed_fraction
from layerprobe.prediction.rules import check_depth, plateau_rule, rule_curves, tuned_rule
from layerprobe.prediction.values import PLATEAU, DropPrediction
from layerprobe.readings.frozen import layer_curve
from layerprobe.readings.reading import CKA, INFONCE, READINGS, SELF_CKA, LayerCurve
from layerprobe.readings.source import N_ALTERED, Source, source_curves
from layerprobe.scoring.score import score_split, zero_shot
from layerprobe.scoring.values import LayerScores
from layerprobe.similarity import measures
from layerprobe.similarity.checks import MIN_SAMPLES
from layerprobe.similarity.values import Alignment, Measure
from layerprobe.stats.crossed import item_covariance
from layerprobe.study.values import Prediction
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.quality import DataQuality, distinct_texts, unwrap_texts
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task, TextFile, TextSplit

# Chosen on DropBench and on held-out models; the README has both tables.
DEFAULT_RULE = "fall of InfoNCE"
# InfoNCE compares copies of a text with dropped words; this rule needs no words.
WORDLESS_RULE = "fall of effective rank"
# Zero-shot scores contradict a prediction when a flagged layer is ahead of the recommended one by this much, x 100.
CONTRADICTION = 5.0

# Texts at the start of a prediction, and the share of agreeing bootstrap samples at which no more are read.
FEW_TEXTS, CERTAIN = 128, 0.99
# Labelled items that are scored first.
FEW_ITEMS = 256
# Readings whose expectation does not depend on the number of texts, unlike ranks, entropies and dimensions.
STEADY = ((INFONCE,), (CKA,), (SELF_CKA,))
# The similarity for which DropBench fitted the rules that read CKA.
DEBIASED_CKA = measures.CKA()

References = ModelLike | Sequence[ModelLike] | None
NumberOfTexts = int | Literal["all"] | None


def predict(
    model: ModelLike,
    data: Task | TextFile | Sequence[str],
    *,
    reference: References = None,
    rule: str | None = None,
    measure: Measure | str | None = None,
    alignment: Alignment | None = None,
    groups: Mapping[str, str] | None = None,
    split: TextSplit = "all",
    n_texts: NumberOfTexts = None,
) -> Prediction:
    """Predict which layer to keep, before any training, and how far to trust the prediction.

    Flagged layers may drop after fine-tuning; only fine-tuning can confirm it.

    Args:
        model: A name, a folder or a `Model`.
        data: A task or texts.
        reference: One or several models pretrained by masked language modelling; the first one gives the prediction.
            Without one, the prediction comes from a rule that reads the model alone, and each layer is compared with
            the one before.
        rule: One of `rule_names`; by default the fall of InfoNCE, or of the effective rank if most texts are single
            words.
        measure: Measure of similarity to the reference, a name or an instance; debiased linear CKA by default.
        alignment: same-index, relative-depth or best-match.
        groups: The group of each text, if texts of a group are not independent.
        split: The split of a task whose texts are embedded: train, validation, test, or all.
        n_texts: Number of texts to read, drawn at random, or "all"; by default 128, doubled until 99 % of bootstrap
            samples give the same prediction, and all for rules whose readings depend on the number of texts. 256
            labelled pairs are scored, or enough to decide whether a flagged layer is 5 points ahead; with "all", all.

    Raises:
        DataError: If there is no such rule, it needs missing labels or a missing reference, the model has fewer than
            three blocks, or there are fewer than four texts.
        LayerProbeError: If the model cannot be loaded, or its layers cannot be compared.
    """
    task = data if isinstance(data, Task) else None
    data = unwrap_texts(data) if task is None else task
    check_choice(split, TextSplit, name="split")
    items = data.split(split) if isinstance(data, Task) else distinct_texts(data)
    texts = items.texts if isinstance(items, Items) else items
    references = model_tuple(reference)
    rule = chosen_rule(rule, texts, labelled=task is not None, referenced=bool(references))
    checkpoint, *bases = resolve_all([model, *references], items=readable_as(texts))
    numbers = numbers_of_texts(rule, n_texts, len(texts))
    quality = data_quality(checkpoint, data, split=split)
    extractions = [replace(Extraction.of(one, items), cut=one is checkpoint) for one in (checkpoint, *bases)]
    by_reference = rule if CKA in rule_curves(rule) else PLATEAU  # rules on CKA differ by reference
    rules = [rule, *[by_reference] * (len(bases) - 1)]
    for before, n in itertools.pairwise((0, *numbers)):
        drawn, *drawn_of_bases = (extraction.drawn(n, before=before) for extraction in extractions)
        with part(start=0, share=EMBEDDED, whole=1):
            embedded = drawn.embed(look=False)  # all texts were checked above
            others = [*in_parts(Extraction.embed, drawn_of_bases)]
        compared = compare_all(
            embedded,
            others or [embedded],
            measure=measure,
            alignment=alignment if others else "previous-layer",
            groups=groups,
            device=checkpoint.asked.device,
        ).comparisons
        names = [name for name in rule_curves(rule) if name != CKA]
        n_altered = max(n, 2) if rule_curves(rule) in STEADY else N_ALTERED
        with part(start=EMBEDDED, share=1 - EMBEDDED, whole=1):
            source = Source(extraction=drawn, task=task, groups=groups, n_altered=n_altered)
            curves = source_curves(source, names)
        drops = [
            predict_drop(comparison, rule=name, curves=curves) for comparison, name in zip(compared, rules, strict=True)
        ]
        if (drops[0].same or 0.0) >= CERTAIN or not quality.readable:
            break
    labelled: LayerScores | None = None
    label_warnings: tuple[str, ...] = ()
    if task is not None:
        labelled, label_warnings = score_untrained(checkpoint, task, drops[0], all_items=n_texts == "all")
        drops = [
            predict_drop(comparison, rule=name, curves=curves, zero_shot=labelled)
            for comparison, name in zip(compared, rules, strict=True)
        ]
    if not quality.readable:
        drops = [mark_unreadable(drop, quality, n_blocks=embedded.model.n_blocks) for drop in drops]
    drops = [with_text_count(drop, n, len(texts)) for drop in drops]
    warnings = [
        *checkpoint.tokenizer_cautions,
        *quality.cautions,
        *(warning for embeddings in (embedded, *others) for warning in embeddings.warnings),
        *label_warnings,
        *(warning for comparison in compared for warning in comparison.warnings),
        *(
            caution
            for comparison, drop in zip(compared, drops, strict=True)
            for caution in drop_cautions(comparison, drop, labelled)
        ),
    ]
    return Prediction(
        comparisons=compared,
        drops=tuple(drops),
        zero_shot=labelled,
        warnings=tuple(dict.fromkeys(warnings)),
        data=quality,
    )


def numbers_of_texts(rule: str, requested: NumberOfTexts, available: int) -> tuple[int, ...]:
    """Return the numbers of texts to read, one after another until the prediction is certain; DataError for too few."""
    if requested == "all" or (requested is None and rule_curves(rule) not in STEADY):
        return (available,)
    if requested is None:
        return doubled(FEW_TEXTS, available)
    if not isinstance(requested, Integral) or requested < MIN_SAMPLES:
        raise DataError(f"expected a number of texts, {MIN_SAMPLES} or more, or 'all', got {requested!r}")
    return (min(requested, available),)


def doubled(first: int, available: int) -> tuple[int, ...]:
    """Return a number, its doublings below `available`, and `available`.

    Examples:
        >>> doubled(128, 1000)
        (128, 256, 512, 1000)
    """
    return (*itertools.takewhile(lambda n: n < available, (first * 2**i for i in itertools.count())), available)


def model_tuple(models: References) -> tuple[ModelLike, ...]:
    """Return one model, several or none as a tuple."""
    if models is None:
        return ()
    one = isinstance(models, str | os.PathLike | Model | Resolved) or is_loaded(models)
    return (models,) if one else tuple(models)  # type: ignore[return-value, arg-type]


# ---- the labels ------------------------------------------------------------------------------------------


def score_untrained(
    checkpoint: Resolved, task: Task, drop: DropPrediction, *, all_items: bool = False
) -> tuple[LayerScores, tuple[str, ...]]:
    """Return scores of the validation split without training, and the warnings of its embeddings.

    Items scored by cosine are drawn at random: 256, doubled until it is settled whether a flagged layer is so far
    ahead of the recommended one that the labels contradict the prediction. For other items, all are scored.
    """
    kind, items = KINDS[task.kind], task.split("validation")
    if all_items or kind.zero_shot != "cosine" or kind.fits or len(items) <= FEW_ITEMS:
        scores, embeddings = score_split(checkpoint, task, split="validation")
        return scores, embeddings.warnings
    task = checked_task(task)
    items = task.split("validation")
    order = np.random.default_rng(0).permutation(len(items))
    earlier = [Extraction.of(checkpoint, task).texts, Extraction.of(checkpoint, items).texts]
    for n in doubled(FEW_ITEMS, len(items)):
        part = replace(task, validation=items.take(sorted(order[:n].tolist())))
        extraction = Extraction.of(checkpoint, part.validation)
        embeddings = replace(extraction, earlier=tuple(earlier)).embed()
        with settings(by_item=True):
            scores = zero_shot(embeddings, part, split="validation")
        if settled(scores, drop):
            break
        earlier.append(extraction.texts)
    floor = kind.floors(part.validation).get(task.primary)
    drawn = (n, len(items)) if n < len(items) else None
    return replace(scores, influences=(), floor=floor, n_items=drawn), embeddings.warnings


def settled(scores: LayerScores, drop: DropPrediction) -> bool:
    """Return whether 95 % intervals settle if a flagged layer is so far ahead that labels contradict a prediction."""
    flagged = [layer for layer in drop.drop_layers if layer in scores.layers]
    chosen = drop.recommended_layer
    if not flagged or not scores.influences:
        return True
    influences = np.array(scores.influences)
    variances = np.diag(item_covariance(influences[flagged] - influences[chosen]))
    half = ndtri((1 + LEVEL) / 2) * np.sqrt(variances)
    ahead = np.array(scores.scores)[flagged] - scores.scores[chosen] - CONTRADICTION
    return bool((ahead - half > 0).any() or (ahead + half < 0).all())


# ---- the rule --------------------------------------------------------------------------------------------


def default_rule(texts: Sequence[str]) -> str:
    """Return the default rule for texts: another one if most have no second word that could be dropped.

    It also serves images.
    """
    n_several = sum(len(text.split()) > 1 for text in texts) if readable_as(texts) == "text" else 0
    return DEFAULT_RULE if 2 * n_several >= len(texts) else WORDLESS_RULE


def chosen_rule(name: str | None, texts: Sequence[str], *, labelled: bool, referenced: bool = True) -> str:
    """Return the named rule, or the default for the texts; DataError if it needs missing labels or a reference."""
    name = name or default_rule(texts)
    reads = rule_curves(name)
    needed = {name for name in reads if name != CKA and READINGS[name].labelled}
    if needed and not labelled:
        raise DataError(f"expected a task for the rule {name!r}, which reads {' and '.join(sorted(needed))}, got texts")
    if CKA in reads and not referenced:
        raise DataError(
            f"the rule {name!r} reads CKA with a reference, and none was given: give one, or choose a "
            "rule that reads the model alone"
        )
    return name


def predict_drop(
    comparison: Comparison,
    *,
    rule: str,
    curves: Mapping[str, LayerCurve] | None = None,
    zero_shot: LayerScores | None = None,
) -> DropPrediction:
    """Apply a rule to a model's comparison and the curves from `read_curves`.

    Zero-shot scores only choose a baseline, not the prediction.
    """
    by_name = dict(curves or {})
    if ranks := tuple(layer.effective_rank for layer in comparison.model_diagnostics):
        by_name = {**dict.fromkeys(rule_curves(WORDLESS_RULE), LayerCurve(values=ranks)), **by_name}
    return drop_of_curves(
        distinct_names([comparison.model.name, comparison.reference.name])[0],
        comparison.model.n_blocks,
        comparison.layers,
        by_name,
        rule=rule,
        comparison=None if comparison.alone else comparison,
        zero_shot=zero_shot,
    )


def drop_of_curves(
    model: str,
    n_blocks: int,
    layers: range,
    curves: Mapping[str, LayerCurve],
    *,
    rule: str,
    comparison: Comparison | None = None,
    zero_shot: LayerScores | None = None,
) -> DropPrediction:
    """Apply a rule to the readings of layers that are not left out; DataError for fewer than 3 blocks.

    The CKA curve comes from the comparison with a reference. Scores before fine-tuning choose a baseline.
    """
    by_name = dict(curves)
    # a layer left out at the beginning still counts as a block
    check_depth(
        layers.stop - max(layers.start - 1, 0), f"{model} before its collapse" if layers[-1] < n_blocks else model
    )
    if comparison is not None:
        by_name[CKA] = layer_curve(comparison.curve)
    seen = ModelCurves(n_blocks=n_blocks, curves=by_name)
    tuned = tuned_rule(rule)

    def recommended(by: Rule) -> int:
        """Apply a rule; layers left out take the values of the nearest one that is not."""
        return min(max(by(seen), layers[0]), layers[-1])

    layer = recommended(tuned)
    baselines = {"last layer": n_blocks, "fixed fraction of depth": fixed_fraction(n_blocks)}
    if zero_shot is not None:
        baselines["best zero-shot layer"] = zero_shot.best_layer
    for other in DEFAULT_RULE, WORDLESS_RULE:
        if rule != other and set(rule_curves(other)) <= by_name.keys():
            baselines[other] = recommended(tuned_rule(other))
    left_out: dict[str, Any] = {"first_layer": layers.start, "collapsed": n_blocks + 1 - layers.stop}
    record = None if _unlike_fitted(comparison, rule) else tuned.record
    by_plateau = None
    if comparison is not None:
        by_plateau = plateau_rule(comparison.curve, model=model, layers=layers)
        if rule == PLATEAU:
            return replace(by_plateau, baselines=baselines, record=record, **left_out)
        baselines[PLATEAU] = by_plateau.recommended_layer
    read = {name: by_name[name] for name in tuned.curves if name != CKA}
    values = {name: curve.values for name, curve in read.items()}
    flagged = range(layer + 1, n_blocks + 1)
    flagged_in, recommended_in = tuned.shares(seen, most=layers[-1])
    return DropPrediction(
        drop_layers=tuple(flagged),
        onset=layer + 1 if flagged else None,
        recommended_layer=layer,
        rule=rule,
        evidence=by_plateau.evidence if by_plateau else None,
        baselines=baselines,
        flagged_in=flagged_in,
        recommended_in=recommended_in,
        record=record,
        read=values,
        read_uncertainty={name: curve.uncertainty for name, curve in read.items() if curve.uncertainty},
        **left_out,
    )


def _unlike_fitted(comparison: Comparison | None, rule: str) -> bool:
    """Return whether a rule that reads CKA gets another similarity than the one it was fitted on."""
    return comparison is not None and CKA in rule_curves(rule) and comparison.map.measure != DEBIASED_CKA


def with_text_count(drop: DropPrediction, n: int, available: int) -> DropPrediction:
    """Return a prediction with the number of texts read; with fewer than all, without the baseline that needs all."""
    beside = {rule: layer for rule, layer in drop.baselines.items() if n == available or rule != WORDLESS_RULE}
    return replace(drop, n_texts=(n, available), baselines=beside)


def mark_unreadable(drop: DropPrediction, quality: DataQuality, *, n_blocks: int) -> DropPrediction:
    """Return an empty prediction for a model that cannot read the texts."""
    drop = replace(drop, readable=False, drop_layers=(), onset=None, flagged_in=(), recommended_in=(), record=None)
    return replace(drop, recommended_layer=n_blocks)


# ---- reasons to doubt it ---------------------------------------------------------------------------------


def drop_cautions(
    comparison: Comparison, drop: DropPrediction, zero_shot: LayerScores | None = None
) -> tuple[str, ...]:
    """Return, in plain words, the reasons to doubt a predicted drop."""
    cautions = []
    model, reference = comparison.model, comparison.reference
    same = (model.revision, model.random_init) == (reference.revision, reference.random_init)
    if same and not comparison.alone:
        cautions.append("the model was compared with itself: use another model as the reference, such as BERT")
    if _unlike_fitted(comparison, drop.rule):
        cautions.append(
            f"the thresholds of the rule {drop.rule!r} were fitted on {DEBIASED_CKA.title}, and it read "
            f"{comparison.map.measure.title}: its accuracy there is unknown"
        )
    if drop.drops and CKA in rule_curves(drop.rule) and reference.random_init is not None:
        cautions.append(
            "the reference has random weights: a decline of CKA against it shows how far training moved a layer, "
            "not that the layer makes worse sentence embeddings"
        )
    if drop.drops and zero_shot is not None:
        score, best = zero_shot.scores[drop.recommended_layer], zero_shot.best_layer
        if best in drop.drop_layers and zero_shot.scores[best] > score + CONTRADICTION:
            cautions.append(
                f"the labels disagree: before fine-tuning, the flagged layer {best} scores "
                f"{zero_shot.scores[best]:.1f} and the recommended layer {drop.recommended_layer} {score:.1f} "
                f"({zero_shot.split} {metric_title(zero_shot.primary)} x 100)"
            )
    return tuple(cautions)
