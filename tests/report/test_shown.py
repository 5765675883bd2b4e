"""Results that show themselves: one line, a table, a plot and a page, whatever they are of."""

import dataclasses
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerprobe
from layerprobe.comparison.differences import Differences
from layerprobe.comparison.values import Comparisons
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.outcomes import outcomes
from layerprobe.finetuning.values import EpochMetrics, FineTuningRun, TuningResult
from layerprobe.interval import Interval
from layerprobe.names import short_name
from layerprobe.profiling.run import side_by_side
from layerprobe.readings.reading import LayerCurve
from layerprobe.results.conclusion import Choice, Conclusion, Verdict
from layerprobe.results.document import render
from layerprobe.results.draw import figures
from layerprobe.results.shown import Shown, read_result
from layerprobe.results.table import Table
from layerprobe.scoring.score import across_tasks
from layerprobe.scoring.scores import LayerOfModel, Scores, TaskScores
from layerprobe.scoring.values import LayerScores, Way, Ways
from layerprobe.search.ask import LayerSearch
from layerprobe.search.values import SearchAnswer
from layerprobe.stats.values import AgainstBest
from tests.models import HIDDEN, N_BLOCKS, given, save_tiny

from .conftest import FINDINGS, HOSTILE, PAIRS, TUNED, changed, model, profile, zero_shot
from .test_page import Page


def scan() -> TuningResult:
    scores = [{"spearman": 70 + 5 * math.sin(layer)} for layer in range(13)]
    layers = [
        dataclasses.replace(run(), layer=layer, weighting="falling", validation=of, test=of, seed=seed)
        for seed in (3, 4)
        for layer, of in enumerate(scores)
    ]
    layers[4] = dataclasses.replace(layers[4], error="the loss became nan", validation={}, test={})
    return tuned(layers)


def retrieval(*names: str, first_layer: int = 0) -> Scores:
    """Scores of queries by models of four layers, of which each one's last is better than the one's before."""
    names, tasks = names or ("intfloat/e5-small",), []
    for number in range(len(names)):
        by_query = tuple(tuple(40.0 + layer + 2.0 * query for query in range(4)) for layer in (0, 1, 3, 2 + 5 * number))
        scores = LayerScores(
            split="test",
            method="cosine",
            primary="ndcg@10",
            metrics={"ndcg@10": tuple(map(statistics.fmean, by_query)), "mrr@10": (50.0,) * 4},
            first_layer=first_layer,
        )
        about = {"task": "scifact", "task_digest": "0" * 64, "kind": "retrieval", "unit": "query", "n_items": 4}
        tasks.append(TaskScores(scores=scores, facts={"documents": 100}, model=number, **about))
    return Scores(
        models=tuple(model(name, 3) for name in names),
        tasks=tuple(tasks),
        layers=tuple(
            LayerOfModel(model=i, layer=layer, score=task.scores.scores[layer], interval=None, parameters=layer + 1)
            for i, task in enumerate(tasks)
            for layer in range(first_layer, 4)
        ),
        level=0.95,
    )


def differences(name: str = "before") -> Differences:
    errors = [
        None if layer == 2 else Interval(value=1.0 - layer, standard_error=0.5, interval=(-layer, 2.0 - layer), **ERROR)
        for layer in range(4)
    ]
    return Differences(
        results=(name, "after"),
        task=name,
        split="test",
        primary="spearman",
        unit="pair",
        n_items=1379,
        layers=(0, 1, 2, 3),
        scores=tuple((60.0, 61.0 - layer) for layer in range(4)),
        errors=tuple(errors),
        level=0.95,
        notes=(f"layers of {name} alone are left out: 4",),
    )


ERROR: dict[str, float] = {"level": 0.9875, "freedom": 1378.0}


def across() -> Scores:
    scores = zero_shot(13, 46.0)
    tasks = [
        TaskScores(
            task=name,
            task_digest=name,
            kind="sts",
            n_items=100,
            unit="pair",
            scores=dataclasses.replace(
                scores, metrics={"spearman": tuple(value + shift * layer for layer, value in enumerate(scores.scores))}
            ),
        )
        for name, shift in (("stsb", 0.0), (HOSTILE, 1.0))
    ]
    return across_tasks((model("org/a", 12),), tasks)


def models(hostile: str = "google/electra-base-discriminator", task: str = HOSTILE) -> Scores:
    described = (model(hostile, 12), model("org/b", 6))
    rng = np.random.default_rng(0)
    rows = [(i, layer) for i, each in enumerate(described) for layer in range(each.n_layers)]
    scores = [60 + 2 * layer + float(rng.normal()) for _, layer in rows]
    by_model = [tuple(score for (i, _), score in zip(rows, scores, strict=True) if i == number) for number in range(2)]
    return Scores(
        models=described,
        tasks=tuple(
            TaskScores(
                task=task,
                task_digest="0" * 64,
                kind="sts",
                scores=LayerScores(split="test", method="cosine", primary="spearman", metrics={"spearman": curve}),
                model=number,
                n_items=1379,
                unit="pair",
            )
            for number, curve in enumerate(by_model)
        ),
        level=0.9,
        compared=AgainstBest(
            scores=tuple(scores),
            intervals=tuple((score - 1, score + 1.5) for score in scores),
            behind=tuple(max(scores) - score + 0.5 for score in scores),
            candidates=(11, 12),
            level=0.9,
            tolerance=1.0,
        ),
        warnings=(hostile,),
        layers=tuple(
            LayerOfModel(
                model=i,
                layer=layer,
                score=score,
                interval=(score - 1, score + 1.5),
                parameters=described[i].parameters[layer],
                milliseconds=None if hostile == HOSTILE else 1.0 + layer,
                milliseconds_range=None if hostile == HOSTILE else (0.9 + layer, 1.3 + layer),
            )
            for (i, layer), score in zip(rows, scores, strict=True)
        ),
    )


def summaries() -> Scores:
    """Scores with further ways beside baselines, of which one gain has no interval."""
    scores, curve = retrieval(), (20.0, 22.0, 24.0, 23.0)
    ways = (
        Way(name=name, validation=curve, test={"rouge-l": curve, "rouge-1": curve}, gains=(None,) * 4)
        for name in ("degree", "probe")
    )
    baselines = {
        name: {"rouge-l": value, "rouge-1": value} for name, value in (("first sentence", 21.0), ("oracle", 60.0))
    }
    about = {"primary": "rouge-l", "n_items": 30, "unit": "document", "first_layer": 0}
    return dataclasses.replace(scores, ways=Ways(ways=tuple(ways), baselines=baselines, **about))


def found_models(hostile: str = "google/electra-base-discriminator") -> Any:
    finding = changed(FINDINGS["found"](), among=FINDINGS["found"]().answer, among__smallest_sufficient=None)
    other = changed(finding, model__name=hostile, among__candidates=(3,))
    more = {"task": HOSTILE, "others": (other,), "place": 1, "share": 0.12, "failures": (hostile,)}
    return changed(finding, model__name="org/b", among__candidates=(9, 12), **more)


def run() -> FineTuningRun:
    found = FINDINGS["found"]()
    epochs = tuple(EpochMetrics(epoch=each, train_loss=1 / each, validation={"spearman": 70.0}) for each in (1, 2))
    return dataclasses.replace(found.fine_tuned[0], epochs=epochs)


def tuned(runs: list[FineTuningRun]) -> TuningResult:
    named = [dataclasses.replace(run, model="org/a", task=HOSTILE) for run in runs]
    by_layer = outcomes([run for run in named if not run.error])
    return TuningResult(level=0.9, runs=tuple(named), outcomes=by_layer, floors=(None,), compared=(None,))


def searched(*, higher_is_better: bool = True) -> SearchAnswer:
    """Return the answer of a search that was told a number of each run."""
    search = LayerSearch(n_blocks=6, higher_is_better=higher_is_better)
    for layer, score in (3, 0.71), (4, 0.73), (6, 0.70):
        search.tell(layer, 0, score)
    return search.answer()


CASES: dict[str, Callable[[], Shown]] = {
    **FINDINGS,
    "search": searched,
    "search, lower scores are better": lambda: searched(higher_is_better=False),
    "comparison": lambda: PAIRS["intervals"]().comparison,
    "comparison without intervals": lambda: PAIRS["plain"]().comparison,
    "comparison, hostile": lambda: PAIRS["hostile intervals"]().comparison,
    "comparisons": lambda: Comparisons(comparisons=PAIRS["intervals"]().comparisons),
    "map": lambda: PAIRS["intervals"]().comparison.map,
    "map without intervals": lambda: PAIRS["plain"]().comparison.map,
    "drop prediction": lambda: PAIRS["intervals"]().drop,
    "drop prediction, hostile": lambda: PAIRS["hostile"]().drop,
    "prediction": PAIRS["intervals"],
    "prediction without intervals": PAIRS["plain"],
    "prediction, hostile": PAIRS["hostile intervals"],
    "zero-shot": lambda: zero_shot(13, 46.0),
    "runs": lambda: tuned([dataclasses.replace(run(), layer=layer) for layer in (3, 4)]),
    "scans": scan,
    "retrieval": retrieval,
    "retrieval by two models": lambda: retrieval("org/a", "org/b"),
    "summaries": summaries,
    "several tasks": across,
    "several models": models,
    "several models, hostile": lambda: models(HOSTILE),
    "found of several models": found_models,
    "found of several models, hostile": lambda: found_models(HOSTILE),
    "reading": lambda: LayerCurve(values=(3.0, 1.0, 2.0), standard_errors=(0.1, 0.1, 0.2)),
    "profile": profile,
    "profiles": lambda: side_by_side([profile(), profile("google-bert/bert-base-cased", speed=2.0)]),
    "several tuned": lambda: TUNED,
    "profiles, hostile": lambda: side_by_side([profile(HOSTILE), profile()]),
    "differences": differences,
    "differences, hostile": lambda: differences(HOSTILE),
}
ELSEWHERE = {
    *("RecipeResult", "Bench", "Probing", "Shrunk", "Reproduction", "Pretraining", "Adaptation", "ExportResult"),
    *("Diagnosis", "Snapshot"),
}
"""Results that take training: tested where their tests train."""


def shown_kinds() -> set[type[Shown]]:
    """Return every kind of result, of all modules that have one."""
    root = Path(layerprobe.__file__).parents[1]
    for file in (root / "layerprobe").rglob("*.py"):
        if "(Shown)" in file.read_text(encoding="utf-8"):
            import_module(".".join(file.relative_to(root).with_suffix("").parts))
    # a dataclass with slots is a second class; the first one, without them, is not in its module
    return {
        kind
        for kind in Shown.__subclasses__()
        if getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
        and kind.__module__.startswith("layerprobe")
    }


def test_every_kind_of_result_is_tested_and_stays_a_value() -> None:
    kinds = {kind.__name__: kind for kind in shown_kinds()}
    assert {type(make()).__name__ for make in CASES.values()} | ELSEWHERE == set(kinds)
    for kind in kinds.values():
        assert "__repr__" not in vars(kind), f"{kind.__name__} is a dataclass without repr=False"
        assert "__slots__" in vars(kind), kind


def test_embeddings_name_their_sizes_and_not_their_texts(tmp_path: Path) -> None:
    texts = ["a b", "c d", "e f", "a b"]
    made = extract(given(str(save_tiny("bert", tmp_path / "model")), Model(cache_dir=tmp_path / "cache")), texts)
    sizes = f"{N_BLOCKS + 1} layers of {HIDDEN} features, 4 texts (3 different)"
    assert repr(made) == f"<Embeddings: {short_name(str(tmp_path / 'model'))}, {sizes}>"


def test_a_line_needs_no_plotly_no_pandas_and_no_torch_and_without_plotly_a_plot_is_one_clear_line() -> None:
    code = (
        "import sys\n"
        "import layerprobe.study.values, layerprobe.scoring.values, layerprobe.prediction.values\n"
        "from layerprobe.errors import LayerProbeError\n"
        "from layerprobe.readings.reading import LayerCurve\n"
        "curve = LayerCurve(values=(1.0, 2.0))\n"
        "print(repr(curve))\n"
        "print(len(str(curve)) > 20)\n"
        "print([name for name in ('plotly', 'pandas', 'torch') if name in sys.modules])\n"
        "sys.modules['plotly'] = None\n"
        "try:\n    curve.plot()\n"
        "except LayerProbeError as error:\n    print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == [
        "<LayerCurve: Highest at the last layer>",
        "True",
        "[]",
        "plotly, needed to show results, is not installed: pip install plotly",
    ]


def test_a_figure_of_the_page_is_plotted_by_its_name() -> None:
    result = PAIRS["intervals"]()
    by_name = {figure.name: figure.plot for figure in figures(result)}
    assert result.plot("flags") == by_name["flags"] != result.plot()
    with pytest.raises(DataError, match="expected a Prediction with front to plot, got "):
        result.plot("front")
    names = ", ".join(figure.name for figure in figures(result))
    for wrong in (3, "", [result], result.to_pandas()):
        with pytest.raises(DataError, match=f" to plot, got one with {names}$"):
            result.plot(wrong)  # type: ignore[arg-type]


def test_a_result_without_a_figure_has_nothing_to_plot() -> None:
    @dataclasses.dataclass(frozen=True, repr=False)
    class Bare(Shown):
        conclusion = Conclusion(kind="find", case="whole", verdict=Verdict.DECIDED, choice=Choice.upto(3, 3))
        table = Table(columns=())

    with pytest.raises(DataError, match="expected a Bare with something to plot, got Keep the whole model"):
        Bare().plot()
    assert "Keep the whole model" in render(Bare(), plotly="cdn")
    assert str(Bare()).startswith("Keep the whole model")


NAMED = [kind for kind in CASES if "hostile" in kind and "drop" not in kind]


@pytest.mark.parametrize("kind", [*NAMED, "several tuned"])
def test_names_cannot_add_elements_and_are_shown_as_they_are(kind: str) -> None:
    hostile = CASES[kind]()
    plain = read_result(hostile.to_json().replace(json.dumps(HOSTILE, ensure_ascii=False)[1:-1], "harmless"))
    assert plain != hostile
    read, safe = (Page(render(result, plotly="cdn")) for result in (hostile, plain))
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in safe.elements]
    assert HOSTILE in read.text


def test_a_layer_that_is_left_out_is_not_drawn() -> None:
    figure, *_ = figures(retrieval(first_layer=1))
    assert "at layer 0" not in str(figure)
    for trace in figure.plot.data:
        layers = range(len(trace.y)) if trace.x is None else trace.x
        assert 0 not in [layer for layer, value in zip(layers, trace.y, strict=True) if value is not None]


def test_retrieval_by_many_models_draws_each_in_its_own_look() -> None:
    result = retrieval(*(f"org/model-{number}" for number in range(6)))
    assert "model-5" in result.summary
    assert result.facts["score"].value == 70.0
    assert (result.facts["next"].value, result.conclusion.names["other"]) == (5.0, "model-4 at layer 3")
    lines = [trace for trace in result.plot().data if trace.showlegend]
    assert [trace.name for trace in lines] == [f"model-{number}" for number in range(6)]
    assert len({(trace.line.color, trace.line.dash, trace.marker.symbol[0]) for trace in lines}) == 6
