"""What each figure draws, for a study whose numbers are known."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import pytest

from layerprobe.errors import DataError
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.report.figures import similarity
from layerprobe.report.figures.scores import parameters_against_score, seeds, tmft, zero_shot
from layerprobe.report.figures.search import search
from layerprobe.report.figures.similarity import cka_curve, cka_map, other_map, read_by_rule
from layerprobe.results import style
from layerprobe.similarity.measures.neighbours import MutualKNN
from layerprobe.stats.seeds import pareto_front, seed_scores
from layerprobe.study.values import Study

from .conftest import STUDIES, confirmed, outcome, rendered


def test_cka_curve_draws_every_layer_and_names_its_axes(plain: Study) -> None:
    figure = cka_curve(plain)
    assert tuple(figure.data[0].y) == plain.comparison.curve.values
    assert tuple(figure.data[0].x) == tuple(range(13))
    assert figure.layout.xaxis.title.text == "Layer (blocks kept)"
    assert figure.layout.yaxis.title.text == "Debiased linear CKA<br>with bert-base-cased"


def test_cka_curve_shades_the_drop_layers_and_names_the_onset(plain: Study) -> None:
    figure = cka_curve(plain)
    (shade,) = figure.layout.shapes
    assert (shade.x0, shade.x1) == (9.5, 12.5)
    assert [annotation.text for annotation in figure.layout.annotations] == ["flagged from layer 10"]
    assert list(figure.data[0].marker.symbol) == ["circle"] * 10 + ["diamond"] * 3


def test_cka_curve_marks_plateau_threshold_and_recommended_layer(plain: Study) -> None:
    traces = {trace.name: trace for trace in cka_curve(plain).data}
    evidence = plain.prediction.evidence
    assert set(traces["plateau"].y) == {evidence.plateau}
    assert set(traces["threshold"].y) == {evidence.plateau - evidence.threshold}
    ring = traces["recommended: layer 9"]
    assert (ring.x, ring.y) == ((9,), (plain.comparison.curve.values[9],))


def test_nothing_is_shaded_where_no_drop_is_expected() -> None:
    figure = cka_curve(STUDIES["no drop"]())
    assert not figure.layout.shapes
    assert not figure.layout.annotations


# ---- intervals ----------------------------------------------------------------------------------------


def outline(lower: Sequence[float], upper: Sequence[float]) -> tuple[float, ...]:
    return (*upper, *reversed(lower))


def test_cka_curve_shades_the_interval_of_each_layer_and_the_band_of_the_curve(measured: Study) -> None:
    traces = {trace.name: trace for trace in cka_curve(measured).data}
    found = measured.comparison.curve.uncertainty
    assert found
    assert traces["95\u00a0% interval of a layer"].y == outline(found.lower, found.upper)
    assert traces["95\u00a0% band of the curve"].y == outline(found.band_lower, found.band_upper)
    assert traces["95\u00a0% band of the curve"].fill == "toself"


def test_cka_curve_says_interval_and_band_of_the_layer_that_is_pointed_at(measured: Study) -> None:
    line = next(trace for trace in cka_curve(measured).data if trace.name == "with mlm")
    assert line.hovertext[8] == (
        "layer 8, reference layer 8<br>CKA 0.2200<br>95\u00a0% interval [0.200, 0.240]"
        "<br>95\u00a0% band of the curve [0.193, 0.247]"
    )


def test_cka_curve_draws_further_references_thin_and_with_their_intervals(measured: Study) -> None:
    figure = cka_curve(measured)
    lines = [trace for trace in figure.data if trace.legendgroup and trace.fill is None]
    shades = [trace for trace in figure.data if trace.legendgroup and trace.fill]
    assert [line.name for line in lines] == ["with bert_uncased_L-8_H-256_A-4", "with random-init"]
    assert [line.y for line in lines] == [one.curve.values for one in measured.further_comparisons]
    assert len({line.line.dash for line in lines}) == 2
    assert all(line.line.width < 2 for line in lines)
    assert [shade.legendgroup for shade in shades] == [line.legendgroup for line in lines]
    assert figure.layout.yaxis.title.text == "Debiased linear CKA<br>with each reference"


def test_without_intervals_nothing_is_shaded_around_the_curve(plain: Study) -> None:
    assert [trace.name for trace in cka_curve(plain).data] == ["CKA", "plateau", "threshold", "recommended: layer 9"]


def by_rank(study: Study) -> Study:
    """The same study, predicted by a rule that reads two other curves."""
    n_layers = study.comparison.model.n_layers
    read = {"effective rank": tuple(map(float, range(n_layers))), "mean <cosine>": (0.5,) * n_layers}
    prediction = dataclasses.replace(study.prediction, rule="logistic on two", read=read, probability=None)
    return dataclasses.replace(study, prediction=prediction)


def test_another_rule_shows_what_it_read_and_no_plateau(plain: Study) -> None:
    study = by_rank(plain)
    assert [trace.name for trace in cka_curve(study).data] == ["CKA", "recommended: layer 9"]
    figure = read_by_rule(study)
    curves = list(study.prediction.read.values())
    assert [trace.y for trace in figure.data[::2]] == curves
    assert [(trace.x, trace.y) for trace in figure.data[1::2]] == [((9,), (values[9],)) for values in curves]
    assert [trace.showlegend for trace in figure.data] == [False, True, False, False]
    titles = [axis.title.text for axis in (figure.layout.yaxis, figure.layout.yaxis2)]
    assert titles == ["effective rank", "mean &lt;cosine&gt;"]
    assert set(figure.data[0].marker.symbol) == {"circle", "diamond"}
    page = rendered(study)
    assert page.index('id="plot-read"') < page.index("<h2>Similarity to the reference")  # it decided
    assert "Effective rank is highest at the last layer, 12, 12; mean &lt;cosine&gt; is" in page
    assert "the prediction is by the rule " in page
    assert "plateau is the median" not in page
    assert "The plateau is the median" in rendered(plain)
    with pytest.raises(DataError, match="expected a prediction by a rule that reads more than CKA"):
        read_by_rule(plain)
    with pytest.raises(DataError, match="expected x of 13 layers, got 1"):
        dataclasses.replace(study, prediction=dataclasses.replace(study.prediction, read={"x": (1.0,)}))


def test_a_rule_without_a_reference_leaves_references_to_the_plateau(measured: Study) -> None:
    study = by_rank(measured)
    baselines = {**study.prediction.baselines, "plateau of CKA": 5}
    study = dataclasses.replace(study, prediction=dataclasses.replace(study.prediction, baselines=baselines))
    page = rendered(study)
    assert "By the plateau of CKA, as the rule of this report reads the model alone." in page
    assert "(this report)</th><td>6–" not in page
    last = study.comparison.model.n_blocks
    assert f"<td>6–{last}</td><td>5</td>" in page
    assert "The prediction of this report comes from the first" in rendered(measured)


def test_everything_drawn_lies_inside_the_axis() -> None:
    figure = cka_curve(STUDIES["hostile intervals"]())
    low, high = figure.layout.yaxis.range
    assert all(low < y < high for trace in figure.data for y in trace.y)


def test_another_measure_has_its_own_name(plain: Study) -> None:
    measure = MutualKNN(neighbours=10)
    found = dataclasses.replace(plain.comparison.map, measure=measure)
    study = dataclasses.replace(plain, comparison=dataclasses.replace(plain.comparison, map=found))
    assert cka_curve(study).layout.yaxis.title.text == "Mutual kNN (k = 10)<br>with bert-base-cased"
    assert cka_map(study).data[0].colorbar.title.text == "mutual kNN"


def test_maps_of_raw_and_zscored_features_share_one_scale(measured: Study) -> None:
    raw, zscored = cka_map(measured), other_map(measured)
    assert (raw.layout.title.text, zscored.layout.title.text) == ("Raw features", "Z-scored features")
    assert (raw.data[0].zmin, raw.data[0].zmax) == (zscored.data[0].zmin, zscored.data[0].zmax)
    assert raw.data[0].colorscale == zscored.data[0].colorscale
    assert [tuple(row) for row in raw.data[0].z] == list(measured.comparison.map.values)
    assert [tuple(row) for row in zscored.data[0].z] != list(measured.comparison.map.values)


def test_the_lowest_value_of_both_maps_begins_the_scale() -> None:
    study = STUDIES["hostile intervals"]()
    lowest = min(map(min, study.comparison.map.values))
    assert lowest < 0
    assert cka_map(study).data[0].zmin == other_map(study).data[0].zmin == lowest


def test_a_cell_of_a_map_says_interval_error_and_chance(measured: Study) -> None:
    found, heat = measured.comparison.map, cka_map(measured).data[0]
    assert found.uncertainty
    assert found.null
    assert tuple(heat.customdata[3][5]) == (
        found.uncertainty.lower[3][5],
        found.uncertainty.upper[3][5],
        found.uncertainty.standard_errors[3][5],
        found.null.threshold[3][5],
        found.null.p_values[3][5],
    )
    assert "95\u00a0% interval [%{customdata[0]:.3f}, %{customdata[1]:.3f}]" in heat.hovertemplate
    assert "standard error %{customdata[2]:.4f}" in heat.hovertemplate


def test_one_map_has_no_title_and_no_other(plain: Study) -> None:
    assert cka_map(plain).layout.title.text is None
    with pytest.raises(DataError, match="expected a study with maps of raw and of z-scored features, got one map"):
        other_map(plain)


# ---- the search ---------------------------------------------------------------------------------------


def test_the_search_draws_expected_scores_scans_and_every_run(searched: Study) -> None:
    finding = searched.finding
    assert finding
    band, scan, dots, expected, keep, _ = search(searched).data
    assert tuple(expected.y) == tuple(known.mean for known in finding.answer.layers)
    lows, highs = zip(*(known.interval for known in finding.answer.layers), strict=True)
    assert band.y == outline(lows, highs)
    assert list(scan.y) == [finding.scanned(layer) for layer in range(13)]
    runs = sorted(finding.fine_tuned, key=lambda run: (run.layer, run.seed))
    assert list(dots.y) == [run.validation["spearman"] for run in runs]
    assert all(0 < x - run.layer < 0.5 for x, run in zip(dots.x, runs, strict=True))
    assert (keep.name, keep.x, keep.y) == ("keep: layer 9", (9,), (finding.answer.layers[9].mean,))


def test_the_search_says_what_is_known_of_the_layer_and_of_the_run_that_is_pointed_at(searched: Study) -> None:
    _, scan, dots, expected, *_ = search(searched).data
    assert searched.finding
    known, (tested, *_) = searched.finding.answer.layers[9], searched.outcomes[1:]
    low, high = known.interval
    assert expected.hovertext[9] == (
        f"layer 9: expected {known.mean:.2f}<br>95\u00a0% interval [{low:.2f}, {high:.2f}]"
        f"<br>chance to be the best: {100 * known.chance_best:.0f}\u00a0%"
        f"<br>chance to be within 0.5 points of the best: {100 * known.chance_within:.0f}\u00a0%"
        f"<br>fine-tuned, on test: {tested.mean:.2f} ± {tested.std:.2f} (2 seeds)"
    )
    assert "on test" not in expected.hovertext[4]
    run = next(run for run in searched.finding.fine_tuned if (run.layer, run.seed) == (9, 1))
    validation, test = run.validation["spearman"], run.test["spearman"]
    assert dots.hovertext[2] == (f"layer 9, seed 1<br>validation {validation:.2f} on part 2 of 5<br>test {test:.2f}")
    assert scan.hovertext[4].startswith("all layers at once, layer 4, seed 0<br>validation ")


def test_the_search_shades_what_may_be_the_best_and_what_drops(searched: Study) -> None:
    assert searched.finding
    assert (searched.finding.answer.candidates, searched.finding.drop_layers) == (tuple(range(12)), (12,))
    figure = search(searched)
    assert [(shade.x0, shade.x1) for shade in figure.layout.shapes] == [(-0.5, 11.5), (11.5, 12.5)]
    assert [annotation.text for annotation in figure.layout.annotations] == ["drop at layer 12"]
    assert "may be the best" in [trace.name for trace in figure.data]


def test_layers_that_may_be_the_best_and_lie_apart_are_shaded_apart(searched: Study) -> None:
    assert searched.finding
    answer = dataclasses.replace(searched.finding.answer, candidates=(2, 3, 7, 8))
    fell = (dataclasses.replace(each, runs=each.layer != 11) for each in answer.layers)  # 11 had no run
    answer = dataclasses.replace(answer, worse=(9, 10, 12), layers=tuple(fell))
    apart = dataclasses.replace(searched, finding=dataclasses.replace(searched.finding, answer=answer))
    shades = [(shade.x0, shade.x1) for shade in search(apart).layout.shapes]
    assert shades == [(1.5, 3.5), (6.5, 8.5), (8.5, 10.5), (11.5, 12.5)]


def test_the_smallest_layer_that_will_do_is_marked_and_scans_share_an_entry() -> None:
    traces = search(STUDIES["found as expected"]()).data
    assert [trace.name for trace in traces if trace.showlegend is not False] == [
        "95\u00a0% interval",
        "one run, all layers",
        "truncated and fine-tuned, by seed",
        "expected score",
        "keep: layer 9",
        "smallest that will do: layer 8",
        "may be the best",
    ]
    assert len(traces) == 8


def test_a_scan_alone_has_no_dots_and_a_study_without_a_search_no_figure(plain: Study) -> None:
    names = [trace.name for trace in search(STUDIES["found in a scan alone"]()).data]
    assert "truncated and fine-tuned, by seed" not in names
    with pytest.raises(DataError, match="expected a study with a search, got none: run it without --no-fine-tuning"):
        search(plain)


def test_nothing_is_claimed_of_spoilt_scores() -> None:
    study = STUDIES["found as expected"]()
    assert study.finding
    answer = dataclasses.replace(study.finding.answer, spoilt=3)
    spoilt = dataclasses.replace(study, finding=dataclasses.replace(study.finding, answer=answer))
    figure = search(spoilt)
    assert {trace.name for trace in figure.data} == {
        "one run, all layers",
        "truncated and fine-tuned, by seed",
        "expected score",
    }
    assert not figure.layout.shapes
    assert figure.data[-1].hovertext[4] == f"layer 4: expected {answer.layers[4].mean:.2f}"
    score = f"{answer.layers[9].mean:.1f}"
    assert f"highest: layer 9, expected score {score}" in [trace.name for trace in cka_curve(spoilt).data]
    claiming, page = rendered(study), rendered(spoilt)
    for claim in ("Green background", "its shade", "keep: layer", "chance to be", "may be the best", "How confident"):
        assert claim in claiming
        assert claim not in page


def test_a_curve_is_shaded_where_it_says_so_itself(searched: Study) -> None:
    figure = cka_curve(searched)
    (shade,) = figure.layout.shapes
    assert (shade.x0, shade.x1) == (3.5, 12.5)
    assert list(figure.data[0].marker.symbol) == ["circle"] * 4 + ["diamond"] * 9
    score = f"{searched.finding.answer.layers[9].mean:.1f}"
    rings = {trace.name: trace.x for trace in figure.data if trace.name and "layer" in trace.name}
    assert rings == {f"keep: layer 9, expected score {score}": (9,), "predicted: layer 3": (3,)}
    for other in (tmft(searched), seeds(searched), zero_shot(searched)):
        assert not other.layout.shapes
    assert list(tmft(searched).data[2].marker.symbol) == ["circle", "circle", "diamond"]
    read = by_rank(searched)
    assert not cka_curve(read).layout.shapes
    assert set(cka_curve(read).data[0].marker.symbol) == {"circle"}
    assert {(shade.x0, shade.x1) for shade in read_by_rule(read).layout.shapes} == {(3.5, 12.5)}


def test_what_decided_is_drawn_beside_what_was_scored(searched: Study) -> None:
    assert searched.finding
    means = [known.mean for known in searched.finding.answer.layers]
    parameters = [count / 1e6 for count in searched.comparison.model.parameters]
    for figure, x in (tmft(searched), range(13)), (parameters_against_score(searched), parameters):
        (line,) = (trace for trace in figure.data if trace.name == "expected score, on validation")
        assert (list(line.x), list(line.y)) == (list(x), means)
    (line,) = (trace for trace in seeds(searched).data if trace.name == "expected score, on validation")
    assert (list(line.y), line.yaxis) == (means, "y")


# ---- maps ---------------------------------------------------------------------------------------------


def test_cka_map_has_the_models_layers_as_rows() -> None:
    figure = cka_map(STUDIES["shallow reference"]())
    heat, compared = figure.data
    assert (len(heat.z), len(heat.z[0])) == (13, 7)
    assert figure.layout.xaxis.title.text == "Layer of bert-base-cased"
    assert figure.layout.yaxis.title.text == "Layer of<br>electra-base-discriminator"
    assert tuple(compared.x) == STUDIES["shallow reference"]().comparison.curve.reference_layers


@pytest.mark.parametrize("lowest", [0.2, 0.0, -1e-9, -0.02, -0.3, -1.0])
def test_the_colour_scale_spans_0_to_1_exactly_and_rises(lowest: float) -> None:
    places = [place for place, _ in similarity._colour_scale(lowest)]
    assert (places[0], places[-1]) == (0.0, 1.0)
    assert places == sorted(places)


def test_zero_shot_draws_model_and_reference_at_their_own_depths() -> None:
    figure = zero_shot(STUDIES["shallow reference"]())
    assert [len(trace.x) for trace in figure.data] == [13, 7]
    assert [trace.name for trace in figure.data] == ["electra-base-discriminator", "bert-base-cased"]


def test_tmft_draws_every_seed_beside_its_mean(whole: Study) -> None:
    figure = tmft(whole)
    seeds, mean, reference_seeds, _ = figure.data
    assert whole.confirmation
    outcomes = whole.confirmation.outcomes
    assert list(mean.x) == [3, 8, 9, 10, 11, 12]
    assert list(mean.y) == [outcome.mean for outcome in outcomes]
    assert list(seeds.y) == [score for outcome in outcomes for score in outcome.scores]
    assert all(abs(x - layer) < 0.5 for x, (layer, _) in zip(seeds.x, seeds.customdata, strict=True))
    assert len(reference_seeds.y) == 9


def test_tmft_bars_reach_the_ends_of_the_intervals(whole: Study) -> None:
    mean = tmft(whole).data[1]
    assert whole.confirmation
    for y, up, down, one in zip(
        mean.y, mean.error_y.array, mean.error_y.arrayminus, whole.confirmation.outcomes, strict=True
    ):
        assert one.interval
        assert (y - down, y + up) == pytest.approx(one.interval)


def test_tmft_of_one_seed_has_bars_of_no_length() -> None:
    mean = tmft(STUDIES["one seed"]()).data[1]
    assert set(mean.error_y.array) == {0.0}
    assert "no interval" in mean.hovertext[0]


@pytest.mark.parametrize("count", [3, 20])
def test_every_seed_of_both_splits_is_drawn_and_the_best_has_a_ring(count: int) -> None:
    study = confirmed(STUDIES["plain"](), seeds=count)
    assert study.confirmation
    outcomes = study.confirmation.outcomes
    validation, _, rings, test, mean, test_rings = seeds(study).data
    assert list(validation.y) == [score for one in outcomes for score in one.validation["spearman"]]
    assert list(test.y) == [score for one in outcomes for score in one.scores]
    assert list(mean.y) == [one.mean for one in outcomes]
    assert list(rings.y) == [max(one.validation["spearman"]) for one in outcomes]
    assert list(test_rings.y) == [one.best_seed_score for one in outcomes]
    assert (validation.yaxis, test.yaxis) == ("y", "y2")
    assert all(abs(x - layer) < 0.5 for x, (layer, _) in zip(test.x, test.customdata, strict=True))


def test_the_bars_of_validation_are_intervals_too(whole: Study) -> None:
    mean = seeds(whole).data[1]
    assert whole.confirmation
    for y, up, one in zip(mean.y, mean.error_y.array, whole.confirmation.outcomes, strict=True):
        interval = seed_scores(one.validation["spearman"], whole.confirmation.level, metric="spearman").interval
        assert interval
        assert y + up == pytest.approx(interval[1])


def test_one_entry_of_the_legend_for_both_splits(whole: Study) -> None:
    shown = [trace.name for trace in seeds(whole).data if trace.showlegend]
    assert shown == ["electra-base-discriminator", "bert-base-cased", "best seed by validation"]


def front(outcomes: Iterable[LayerOutcome]) -> tuple[LayerOutcome, ...]:
    return pareto_front(outcomes, cost=lambda one: one.parameters, score=lambda one: one.mean)


def test_pareto_front_keeps_what_no_other_beats() -> None:
    points = {0: (10, 50.0), 1: (20, 49.0), 2: (20, 60.0), 3: (30, 60.0), 4: (40, 70.0), 5: (50, 65.0)}
    outcomes = [outcome(layer, parameters, mean, seeds=1) for layer, (parameters, mean) in points.items()]
    outcomes = [dataclasses.replace(one, mean=points[one.layer][1]) for one in outcomes]
    assert [one.layer for one in front(reversed(outcomes))] == [0, 2, 4]


def test_pareto_front_keeps_equals() -> None:
    twins: list[LayerOutcome] = [outcome(layer, 10, 50.0, seeds=1) for layer in (1, 2)]
    assert len(front(twins)) == 2
    assert front([]) == ()


def test_parameters_against_score_draws_the_front_and_labels_the_layers(whole: Study) -> None:
    front, points, reference = parameters_against_score(whole).data
    assert list(front.x) == [whole.comparison.model.parameters[layer] / 1e6 for layer in (3, 8, 9)]
    assert front.line.shape == "hv"
    assert list(points.text) == ["3", "8", "9", "10", "11", "12"]
    assert list(reference.text) == ["9", "10", "12"]


@pytest.mark.parametrize(("figure", "missing"), [(zero_shot, "zero-shot"), (tmft, "fine-tuned"), (seeds, "fine-tuned")])
def test_a_figure_without_data_says_what_is_missing(figure: object, missing: str, plain: Study) -> None:
    assert callable(figure)
    with pytest.raises(DataError, match=missing):
        figure(plain)


@pytest.mark.parametrize("kind", ["reference", "intervals", "found as expected"])
def test_every_colour_has_its_counterpart_on_a_dark_page(kind: str) -> None:
    study = STUDIES[kind]()
    figures = (
        cka_curve,
        cka_map,
        zero_shot,
        tmft,
        seeds,
        parameters_against_score,
        *([search] if study.finding else []),
    )
    written = "".join(figure(study).to_json() for figure in figures)
    colours = set(re.findall(r"\"(#[0-9a-fA-F]{3,8}|rgba?\([^)]*\))\"", written))
    assert colours - {style.TRANSPARENT} <= set(style.DARK)


def test_names_are_text_and_not_markup_or_mathematics(hostile: Study) -> None:
    name = zero_shot(hostile).data[0].name
    assert "<" not in name
    assert "$" not in name
    assert name.startswith("evil/&lt;script&gt;")


def test_figures_of_any_study_can_be_drawn(any_study: Study) -> None:
    assert cka_curve(any_study).data
    assert cka_map(any_study).data
