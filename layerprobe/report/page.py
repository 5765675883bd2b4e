"""A study as a page: the finding, its certainty and its evidence. Knows the order of its sections."""

import re
from collections.abc import Iterator
from dataclasses import replace

from layerprobe.comparison.values import Comparisons
from layerprobe.finetuning.values import Protocol, outcome_charts, outcomes_table
from layerprobe.metrics.names import metric_title
from layerprobe.names import listed
from layerprobe.report.comparison import Compared, compared_models, diagnosed, last_and_fall, maps, provenance
from layerprobe.report.facts import size_facts
from layerprobe.report.maps import curve_figure
from layerprobe.report.prediction import baselines, by_plateau, references_table
from layerprobe.report.scores import METHODS
from layerprobe.report.tuning import BADGES, account, badge, finding_facts
from layerprobe.results import numbers
from layerprobe.results.charts import Line
from layerprobe.results.draw import drawn, line, ring
from layerprobe.results.markup import Markup, element, join
from layerprobe.results.page import page_of
from layerprobe.results.parts import commands, definitions, folded, missing, section, table_of
from layerprobe.results.style import CHOSEN, FAINT
from layerprobe.results.table import Table, stacked
from layerprobe.results.values import Figure, Page, Part, Section
from layerprobe.scoring.values import LayerScores, scores_chart
from layerprobe.study.commands import next_commands, run_command, serve_commands
from layerprobe.study.tables import runs_table
from layerprobe.study.values import Study
from layerprobe.tasks.kind import KINDS


def study_page(study: Study) -> Page:
    """Return the page of a study: which layer to keep, the figure that shows it, and what that rests on."""
    compared, finding = _compared(study), study.finding
    sections = tuple(_sections(study))
    first = next(part for name in _decisive(study) for part in _figures(sections) if part.name == name)
    below = tuple(
        replace(section, parts=tuple(part for part in section.parts if part is not first)) for section in sections
    )
    return page_of(
        study,
        kind="study",
        about=f"{compared.about} on {study.provenance.task}",
        facts=_facts_line(study),
        first=first,
        warnings=sum((one.warnings for one in compared.measured[0].comparisons), study.provenance.warnings),
        account=_predicted(study) if finding is None else (*account(finding), *_expected(study)),
        sections=below,
        provenance=(*provenance(compared), _facts(study)),
        stem=f"layerprobe-{re.sub(r'[^A-Za-z0-9.]+', '-', compared.about).strip('-.')[:100]}",
    )


def _compared(study: Study) -> Compared:
    return compared_models([Comparisons(comparisons=(study.comparison, *study.further_comparisons))])


def _names(study: Study) -> tuple[str, str]:
    """Return the model and its first reference as curves are called."""
    compared = _compared(study)
    return compared.model, compared.references[0]


def _facts_line(study: Study) -> tuple[str, ...]:
    finding, tested, model = study.finding, study.confirmation, study.comparison.model
    if finding is not None:
        return finding_facts(finding)
    effect = () if tested is None else (f"{BADGES[tested.verdict]}: {_effect(study)}",)
    return (*effect, *size_facts(model.parameters, study.kept_layer))


def _effect(study: Study) -> str:
    tested = study.confirmation
    assert tested is not None
    ends = f" {numbers.interval(tested.interval)}" if tested.interval else ""
    first, second = tested.compared_layers
    return f"{numbers.signed(tested.effect)}{ends} test {metric_title(study.metric)}, layer {first} less layer {second}"


def _figures(sections: tuple[Section, ...]) -> Iterator[Figure]:
    yield from (part for section in sections for part in section.parts if isinstance(part, Figure))


def _decisive(study: Study) -> tuple[str, ...]:
    """Return the names of the figures that may lead the page, best first: search, fine-tuning, the rule's curves."""
    return ("search", "outcomes", "read-0", "cka-curve") if study.finding else ("outcomes", "read-0", "cka-curve")


def _sections(study: Study) -> Iterator[Section]:
    """Yield the sections, the deciding evidence first; empty ones are left out of the page."""
    finding = study.finding
    if finding is not None:
        runs = folded("All runs, in order", table_of(runs_table(finding)))
        search, cost = (drawn(finding.table, chart) for chart in finding.table.charts)
        yield section("search", "Runs of the search", search, runs)
        yield section("cost", "Expected score versus size", None if finding.answer.spoilt else cost)
    yield from _tuned(study)
    yield from _similar(study)
    yield _zero_shot(study)
    yield _baselines(study)
    yield diagnosed(_compared(study))
    yield _next_steps(study)


# ---- fine-tuning and zero-shot ----------------------------------------------------------------------------


def _tuned(study: Study) -> Iterator[Section]:
    """Yield the scores after fine-tuning: on test, on validation, and by size; or how to get them."""
    heading = "After fine-tuning"
    if not study.outcomes:
        yield section("tmft", heading, missing("No layer has been fine-tuned", run_command(study)))
        return
    table = outcomes_of(study)
    by = "model" if study.reference_outcomes else ""
    test, size = (replace(chart, chosen="the layer to keep") for chart in outcome_charts(by=by))
    validation = replace(test, lines=(Line("validation", seeds="validation_by_seed"),), name="validation")
    whole = replace(table, columns=tuple(replace(column, shown=True) for column in table.columns))
    yield section("tmft", heading, drawn(table, test), folded("Every seed", table_of(whole)))
    yield section("seeds", "On validation", drawn(table, validation))
    if study.finding is None:
        yield section("parameters", size.heading, drawn(table, size))


def outcomes_of(study: Study) -> Table:
    """Return what fine-tuning showed of the layers of the model, and of the reference where it was fine-tuned."""
    pairs = zip(_names(study), (study.outcomes, study.reference_outcomes), strict=True)
    fine_tuned = [(name, outcomes) for name, outcomes in pairs if outcomes]
    table = stacked([outcomes_table(outcomes).named(model=name) for name, outcomes in fine_tuned], by=("model",))
    marks = [
        "chosen" if outcome.layer == study.kept_layer else "drop" if outcome.layer in study.drop_layers else None
        for outcome in study.outcomes
    ]
    return replace(table, marks=(*marks, *[None] * (len(table) - len(marks))))


def _zero_shot(study: Study) -> Section:
    """Return the scores before fine-tuning, or how to get them."""
    heading, pairs = (
        "Before fine-tuning",
        zip(_names(study), (study.zero_shot, study.reference_zero_shot), strict=True),
    )
    scored = [(name, scores) for name, scores in pairs if scores is not None]
    if not scored:
        return section("zero-shot", heading, missing("There are no scores or labels", run_command(study)))
    table = stacked([replace(scores.table, notes=()).named(model=name) for name, scores in scored], by=("model",))
    _, first = scored[0]
    chart = scores_chart(first.primary, first.compared, by="model" if len(scored) > 1 else "", name="zero-shot")
    return section(
        "zero-shot",
        heading,
        _scored(first, study.provenance.task_kind),
        drawn(replace(table, marks=()), chart),
        folded("Every metric", table_of(replace(table, marks=()))),
    )


def _scored(scores: LayerScores, kind: str) -> str:
    """Return how untrained embeddings were scored."""
    fitted = KINDS[kind].threshold is not None and KINDS[kind].zero_shot != "own" and scores.method == "cosine"
    threshold = " The threshold is the one that is best on the validation split." if fitted else ""
    return f"{METHODS[scores.method]}{threshold}"


# ---- similarity ---------------------------------------------------------------------------------------------


def _similar(study: Study) -> Iterator[Section]:
    """Yield the curves that the rule reads, the similarity curve and the map."""
    prediction, comparison = study.prediction, study.comparison
    read = [drawn(prediction.table, chart) for chart in prediction.table.charts[:-1]]
    yield section("read", f"What the rule “{prediction.rule}” reads", *read)
    heading = f"Similarity to the {'layer before' if comparison.alone else 'reference'}, layer by layer"
    values = folded("Every value, with interval and tests", table_of(comparison.table)) if comparison.steps else None
    yield section("cka-curve", heading, _curve(study), values, *_further(study))
    yield maps(compared_models([comparison]))


def _curve(study: Study) -> Figure:
    """Return the curve with the layer that was predicted and the one to keep, and what the plateau rule decided by."""
    comparisons = Comparisons(comparisons=(study.comparison, *study.further_comparisons))
    figure, prediction = curve_figure(comparisons, "cka-curve", last_and_fall(comparisons)), study.prediction
    values, last = study.comparison.curve.values, len(study.comparison.curve.values) - 1
    named = {"recommended" if study.finding is None else "predicted": (prediction.recommended_layer, FAINT)}
    if study.finding is not None:
        named["keep"] = (study.kept_layer, CHOSEN)
    rings = [ring(layer, values[layer], f"{name}: layer {layer}", colour) for name, (layer, colour) in named.items()]
    figure.plot.add_traces(rings)
    if prediction.by_plateau and (evidence := prediction.evidence) is not None:
        first, onset = evidence.plateau_layers[0], evidence.plateau_layers[-1] + 0.5
        for name, level, ends, dash in (
            ("plateau", evidence.plateau, (first - 0.5, onset), "solid"),
            ("threshold", evidence.plateau - evidence.threshold, (onset, last + 0.5), "dash"),
        ):
            texts = [f"{name} {numbers.number(level, 4)}"] * 2
            figure.plot.add_trace(line([level] * 2, name=name, x=ends, texts=texts, colour=FAINT, width=1.5, dash=dash))
    return figure


def _further(study: Study) -> Iterator[Part]:
    if not study.further_comparisons:
        return
    first, by = study.prediction, study.further_predictions[0].rule
    note = "The prediction of this report comes from the first; a drop that all of them show is not specific to one."
    if first.rule != by:
        first = by_plateau(first)
        note = f"By the {by}, as the rule of this report reads the model alone."
    names = list(_compared(study).references)
    names[0] += " (this report)" if first is study.prediction else ""
    table = references_table(names, (first, *study.further_predictions))
    yield element("div", element("h3", table.title), element("p", note), table_of(table))


# ---- what was predicted, and what is next -------------------------------------------------------------------


def _expected(study: Study) -> tuple[str, ...]:
    """Return what was expected before training, and where the search disagrees."""
    prediction = study.prediction
    return (study.expectation, prediction.sentence, *filter(None, [prediction.record_sentence]))


def _predicted(study: Study) -> tuple[str, ...]:
    """Return whether fine-tuning confirms the prediction, and how far to trust the rule."""
    prediction, tested = study.prediction, study.confirmation
    if tested is None:
        untested = "No layer has been fine-tuned: this is what is expected before any training."
        return (badge(None, untested), *prediction.trusted[1:])
    layers = f"Fine-tuned at layers {listed([outcome.layer for outcome in study.outcomes], 'and')}."
    return (badge(tested.verdict, layers), prediction.sentence, *prediction.trusted[1:])


def _baselines(study: Study) -> Section:
    """Return the layers that simpler rules recommend, with their scores from the table of layers."""
    prediction, searched = study.prediction, study.finding is not None
    ways = {"search (this report)": study.kept_layer} if searched else {}
    ways |= {prediction.rule if searched else f"{prediction.rule} (this report)": prediction.recommended_layer}
    intro = "What simpler rules recommend, and what fine-tuning showed if that layer was run."
    intro += " The best zero-shot layer is by validation scores."
    return baselines(ways | prediction.baselines, study.table, intro)


def _next_steps(study: Study) -> Section:
    """Return the next commands; with a search also how to serve what they write."""
    block, heading = commands(*next_commands(study)), "What to do next"
    if study.finding is None:
        advice = "Fine-tune, and find the layer to keep: the prediction chooses where to begin."
        return section("next", heading, advice, block)
    served = (
        join(element("h3", name), commands(*command.splitlines())) for name, command in serve_commands(study).items()
    )
    return section("next", heading, _export(study), block, *served, _served(study) if serve_commands(study) else None)


def _export(study: Study) -> Markup:
    weights, layer = study.finding.weights if study.finding else None, study.kept_layer
    if weights is not None and weights.kept:
        of = "the run that trained all layers at once, truncated" if weights.scan else "the best run, by validation,"
        sentence = f"This writes the fine-tuned model as a folder: {of} at layer {layer}."
    else:
        sentence = (
            f"The weights of the runs were not kept. The first command fine-tunes one model at layer {layer} and keeps "
            "them; the second one writes it as a folder."
        )
        if weights is None:
            sentence += " DIRECTORY is what the first command prints."
    card = " puts the evidence of this page into its model card."
    return element("p", sentence, " ", element("code", "--study study.json"), card)


def _served(study: Study) -> Markup | None:
    if study.comparison.pooling == "max":
        return None
    architecture = study.comparison.model.architecture
    sentence = f"The servers read the pooling from the folder; each has to know the architecture, {architecture}."
    return element("p", sentence, class_="reading")


# ---- where the numbers come from ----------------------------------------------------------------------------


def _facts(study: Study) -> Markup:
    source = study.provenance
    return definitions(
        {
            "Task": f"{source.task} ({source.task_kind}, sha256 {source.task_digest})",
            "Data": "; ".join(source.notes) or None,
            "Rule": _rule(study),
            "Fine-tuning": _protocol(study.protocol, study) if study.protocol else None,
            "Settings": ", ".join(f"{name} {value}" for name, value in source.settings.items())
            if source.settings != study.comparison.settings
            else None,
            "Seeds": ", ".join(map(str, source.seeds)) or None,
            "Device": source.device,
            "Versions": ", ".join(
                [f"layerprobe {source.layerprobe}", *(f"{k} {v}" for k, v in source.versions.items())]
            ),
            "Created": source.created,
            "Command": element("code", source.command),
            "Method": _method(),
        }
    )


def _rule(study: Study) -> str:
    redrawn = study.prediction.probability
    if redrawn is None:
        return study.prediction.rule
    return f"{study.prediction.rule}, on the curve and on {redrawn.draws} bootstrap samples of it (seed {redrawn.seed})"


def _protocol(protocol: Protocol, study: Study) -> str:
    return (
        f"AdamW at {protocol.learning_rate:g}, weight decay {protocol.weight_decay:g}, {protocol.epochs} epochs of"
        f" {protocol.batch_size} examples per step, {numbers.percent(protocol.warmup)} warm-up then linear, gradients"
        f" clipped to {protocol.max_grad_norm:g}, at most {protocol.max_length} tokens, {protocol.pooling} pooling"
        f"{_adapters(protocol)}; the epoch with the best validation {metric_title(study.metric)} counts"
    )


def _adapters(protocol: Protocol) -> str:
    parts = [f"adapters of rank {protocol.lora}"] if protocol.lora else []
    return "".join(f", {part}" for part in (*parts, *(["gradient checkpointing"] * protocol.gradient_checkpointing)))


def _method() -> Markup:
    cited = element("cite", "Are ELECTRA’s Sentence Embeddings Beyond Repair? The Case of Semantic Textual Similarity")
    paper = element("a", "arXiv:2402.13130", href="https://arxiv.org/abs/2402.13130", rel="noreferrer")
    return join("Rep, Dukić and Šnajder (2024), ", cited, ", ", paper)
