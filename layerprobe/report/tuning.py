"""What fine-tuning showed as a page: a search, a verdict, layers, a run."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

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
from layerprobe.names import short_name
from layerprobe.report import words
from layerprobe.report.charts import Look, floor_line, line, mean_and_std, seeds_and_mean, seeds_reading
from layerprobe.report.figures.search import of_finding
from layerprobe.report.page import BADGES
from layerprobe.report.sections.search import search_terms
from layerprobe.results import numbers
from layerprobe.results.markup import element
from layerprobe.results.parts import folded, section, table_of
from layerprobe.results.shown import Shown, make_page
from layerprobe.results.style import CHOSEN, FAINT, MODEL, TRANSPARENT, layer_axis, styled
from layerprobe.results.values import Figure, Page, Section
from layerprobe.search.sentence import kept_phrase
from layerprobe.stats.values import AgainstBest, Floor
from layerprobe.study.sentence import found_drop_sentence, proof_sentence
from layerprobe.study.tables import runs_table
from layerprobe.study.values import Finding

# ---- a search -------------------------------------------------------------------------------------------


def finding_page(finding: Finding, *further: Shown, model: str = "", task: str = "") -> Page:
    """Return the page of which layer to keep, with what is known of whose layer it is, and the sections of others."""
    kept = finding.headline if finding.on_floor else kept_phrase(finding.answer)
    proof = finding.against_last
    badge = "– not tested" if proof is None else BADGES[proof.verdict]
    verdict = element("span", badge, class_=f"badge {'open' if proof is None else proof.verdict}")
    figure = Figure(
        "search",
        of_finding(finding, finding.outcomes),
        words.search_finding(finding),
        words.search_reading(finding),
    )
    runs = folded("All runs, in order", table_of(runs_table(finding)))
    return Page(
        title=f"{f'{short_name(model)}: ' if model else ''}{kept}",
        overline=" · ".join(filter(None, ("layerprobe", "the layer to keep", task))),
        heading=f"{short_name(model)}: {kept.lower()}" if model else kept,
        lead=(finding.kept if finding.on_floor else f"{numbers.capitalised(finding.promise)}. {finding.certainty}",),
        remarks=(element("p", verdict, " ", proof_sentence(finding), class_="verdict"), finding.spent),
        warnings=finding.failures,
        sections=(
            section("search", "Which layer to keep", figure, found_drop_sentence(finding), finding.doubt or None, runs),
            section("layers", "Table of layers", table_of(finding.table), kind="dense"),
            *((_outcomes(finding.outcomes, finding.answer.settings.level),) if finding.outcomes else ()),
            *(each for result in further for each in make_page(result).sections),
        ),
        terms=(*search_terms(finding), "Layer", "TMFT"),
        result=finding,
        data_label="Finding",
        stem="layerprobe-finding",
    )


# ---- layers ---------------------------------------------------------------------------------------------


def confirmation_page(confirmation: Confirmation) -> Page:
    """Return the page of what fine-tuning says of a prediction."""
    first, second = confirmation.compared_layers
    badge = element("span", BADGES[confirmation.verdict], class_=f"badge {confirmation.verdict}")
    return Page(
        title=f"Layer {first} compared with layer {second}: {confirmation.verdict}",
        overline="layerprobe · confirmation",
        heading=f"Layer {first} compared with layer {second}",
        lead=(confirmation.sentence,),
        remarks=(element("p", badge, class_="verdict"),),
        sections=(_outcomes(confirmation.outcomes, confirmation.level),),
        terms=("Layer", "TMFT", "Interval of the mean"),
        result=confirmation,
        stem="layerprobe-confirmation",
    )


def result_page(result: TuningResult[Any]) -> Page:
    """Return the page of fine-tuned layers."""
    outcomes, what = result.outcomes, result.what
    name = short_name(result.model)
    return Page(
        title=f"{name} on {result.task}: {what} by layer",
        overline=f"layerprobe · {what} · {result.task}",
        heading=name,
        lead=(result.sentence,),
        warnings=result.warnings,
        sections=(_outcomes(outcomes, result.level, result.floor, result.compared),),
        terms=("Layer", "TMFT", *(("Scan",) if what == "scan" else ()), "Interval of the mean"),
        result=result,
        stem=f"layerprobe-{what.lower()}",
    )


def _outcomes(
    outcomes: Sequence[LayerOutcome],
    level: float,
    floor: Floor | None = None,
    compared: AgainstBest | None = None,
) -> Section:
    """Return the scores after fine-tuning: every seed, and the mean with its interval."""
    title = metric_title(outcomes[0].primary)
    figure = go.Figure(seeds_and_mean("fine-tuned", outcomes, Look(colour=MODEL, dash="dot"), what=f"test {title}"))
    figure.add_traces(floor_line(floor, outcomes[-1].layer, first=outcomes[0].layer))
    layer_axis(figure, outcomes[-1].layer + 1)
    figure.update_yaxes(title=f"Test {title} × 100")
    best = best_by_validation(outcomes)
    finding = f"Fine-tuned, layer {best.layer} is best by validation; it scores {mean_and_std(best.tested)} on test."
    shown = Figure("outcomes", styled(figure), finding, seeds_reading(outcomes, level))
    return section("outcomes", "After fine-tuning", shown, table_of(outcomes_table(outcomes, floor, compared)))


# ---- one run --------------------------------------------------------------------------------------------


def run_page(run: FineTuningRun) -> Page:
    """Return the page of one fine-tuning run: what each epoch left."""
    title = metric_title(run.primary)
    epochs = [each.epoch for each in run.epochs]
    scores = [each.validation[run.primary] for each in run.epochs]
    texts = [
        f"epoch {each.epoch}<br>validation {title} {numbers.number(score)}<br>loss {each.train_loss:.4g}"
        for each, score in zip(run.epochs, scores, strict=True)
    ]
    marker = {"size": 8, "color": MODEL}
    figure = go.Figure(line(scores, name=f"validation {title}", colour=MODEL, x=epochs, marker=marker, texts=texts))
    if run.best_epoch in epochs:
        ring = {"size": 17, "color": TRANSPARENT, "line": {"color": CHOSEN, "width": 2.5}}
        at, score = [run.best_epoch], [scores[epochs.index(run.best_epoch)]]
        name = f"best: epoch {run.best_epoch}"
        figure.add_trace(go.Scatter(x=at, y=score, name=name, mode="markers", marker=ring, hoverinfo="skip"))
    figure.update_xaxes(title="Epoch", dtick=max(1, len(epochs) // 10))
    figure.update_yaxes(title=f"Validation {title} × 100")
    said = (
        f"Layer {run.layer}, seed {run.seed}: {title} {numbers.number(run.validation[run.primary])} on validation at"
        f" epoch {run.best_epoch}, {numbers.number(run.test[run.primary])} on test."
    )
    return Page(
        title=f"Fine-tuning at layer {run.layer}, seed {run.seed}",
        overline="layerprobe · one run",
        heading=f"Layer {run.layer}, seed {run.seed}",
        lead=(said,),
        sections=(section("epochs", "By epoch", Figure("epochs", styled(figure), said), table_of(run.table)),),
        terms=("Layer", "TMFT"),
        result=run,
        stem="layerprobe-run",
    )


def joint_page(run: JointRun) -> Page:
    """Return the page of one scan: what its model scores at each layer."""
    title = metric_title(run.primary)
    test = [None if each is None else each[run.primary] for each in run.test]
    validation = [None if each is None else each[run.primary] for each in run.validation]
    figure = go.Figure()
    for name, scores, colour, dash in (("test", test, MODEL, "solid"), ("validation", validation, FAINT, "dash")):
        there = {layer: score for layer, score in enumerate(scores) if score is not None}
        texts = [f"layer {layer}<br>{name} {title} {numbers.number(score)}" for layer, score in there.items()]
        marker = {"size": 8, "color": colour}
        figure.add_trace(line(there.values(), name=name, colour=colour, x=there, dash=dash, marker=marker, texts=texts))
    layer_axis(figure, run.n_layers)
    figure.update_yaxes(title=f"{numbers.capitalised(title)} × 100")
    best = run.best_layer
    said = f"This run is highest at layer {best} on validation: {title} {numbers.number(validation[best])}."
    return Page(
        title=f"Scan with seed {run.seed}",
        overline="layerprobe · scan",
        heading=f"Scan, seed {run.seed}",
        lead=(said,),
        warnings=tuple(f"layer {each.layer} is left out: {each.message}" for each in run.failures),
        sections=(section("scan", "Scores by layer", Figure("scan", styled(figure), said), table_of(run.table)),),
        terms=("Layer", "Scan"),
        result=run,
        stem="layerprobe-scan",
    )
