"""Ask and tell: the search of `find` with scores from outside, in a file that processes share and kills leave whole."""

import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerprobe as lp
from layerprobe.context import settings
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_dict, to_dict
from layerprobe.metrics.scores import mean_influences
from layerprobe.readings.reading import LayerCurve
from layerprobe.search.ask import LayerSearch, SearchState
from layerprobe.search.plan import answer, next_run
from layerprobe.search.posterior import layer_steps
from layerprobe.search.values import Evidence, Score, SearchAnswer, SearchSettings
from layerprobe.stats.crossed import item_covariance, least_variance, pooled_covariance
from tests.results.contract import assert_keeps_contract

N_BLOCKS, N_ITEMS = 6, 120
CURVE = np.array([0.55, 0.6, 0.74, 0.8, 0.81, 0.78, 0.7])
INFONCE = tuple((3 * CURVE).tolist())
CKA = tuple(np.linspace(0.9, 0.99, N_BLOCKS + 1).tolist())


def right(layer: int, seed: int) -> np.ndarray[Any, Any]:
    """Which items a run has right; the hard ones are hard for all."""
    noise = np.random.default_rng([layer, seed]).normal(scale=0.1, size=N_ITEMS)
    return np.linspace(0, 1, N_ITEMS) + noise < CURVE[layer]


def finish(search: LayerSearch, *, items: bool) -> tuple[list[tuple[int, ...]], SearchAnswer]:
    runs = []
    while run := search.ask():
        scores = right(*run)
        search.tell(*run, scores if items else scores.mean())
        runs.append(tuple(run))
    return runs, search.answer()


def searched(asked: SearchSettings, evidence: Evidence, *, items: bool) -> tuple[list[tuple[int, ...]], SearchAnswer]:
    """The same, from evidence to decision to evidence, as `find` goes."""
    runs: list[tuple[int, ...]] = []
    while (run := next_run(evidence, asked).run) is not None:
        runs.append(tuple(run))
        covariance = np.zeros((len(runs), len(runs)))
        if items:
            covariance = item_covariance([100 * mean_influences(right(*each)) for each in runs])
            covariance[np.diag_indices(len(runs))] = np.maximum(np.diag(covariance), least_variance(N_ITEMS))
            covariance = pooled_covariance(covariance, [N_ITEMS] * len(runs), N_ITEMS)
        evidence = replace(
            evidence,
            scores=tuple(Score(layer=layer, seed=seed, value=100 * right(layer, seed).mean()) for layer, seed in runs),
            item_covariance=tuple(map(tuple, covariance.tolist())),
            n_items=N_ITEMS if items else None,
        )
    return runs, answer(evidence, asked)


@pytest.mark.parametrize(("items", "in_file"), [(True, True), (False, False)])
def test_runs_and_answer_are_those_of_the_search(tmp_path: Path, *, items: bool, in_file: bool) -> None:
    readings = {"InfoNCE": LayerCurve(values=INFONCE), "self CKA": CKA, "LiDAR": CKA}
    with settings(level=0.9):
        path = tmp_path / "search.json" if in_file else None
        search = LayerSearch(path, n_blocks=N_BLOCKS, tolerance=1, budget="60%", seeds=2, readings=readings)
    asked = SearchSettings(tolerance=1, budget=0.6, seeds=2, level=0.9)
    evidence = Evidence(n_blocks=N_BLOCKS, infonce=INFONCE, steps=layer_steps(CKA[1:]))
    runs, found = finish(search, items=items)
    expected = searched(asked, evidence, items=items)
    assert runs == expected[0]
    assert len(runs) > 3
    assert found == expected[1]
    assert found.decision.stop is not None
    assert found.doubt is not None
    assert (found.doubt.items_needed is not None) == items
    assert search.outlook == f"the search is over: {found.decision.why}"


def test_what_was_told_before_counts_and_need_not_have_been_asked() -> None:
    search = LayerSearch(n_blocks=N_BLOCKS, budget=0.4, seeds=3, start=5)
    for seed in range(2):
        search.tell(6, seed, right(6, seed))
    assert tuple(search.ask() or ()) not in {(), (6, 0)}
    assert search.answer().layers[6].runs == 2
    assert search.answer().spent == 14


def test_several_at_a_time_differ_and_depend_on_what_is_pending() -> None:
    search = LayerSearch(n_blocks=N_BLOCKS, budget=0.4)
    runs = search.ask(3)
    assert len(set(runs)) == 3
    assert search.pending == runs
    search.tell(*runs[1], 0.7)
    assert search.pending == [runs[0], runs[2]]
    assert "1 runs reported, 2 pending" in repr(search)
    assert search.ask() not in runs


def test_a_worker_that_asks_again_gets_its_run_and_a_released_run_comes_again() -> None:
    search = LayerSearch(n_blocks=N_BLOCKS)
    run, other = search.ask(worker="7"), search.ask(worker="8")
    assert run is not None
    assert other is not None
    assert run != other
    assert search.ask(worker="7") == run
    search.release(*run)
    assert search.pending == [other]
    search.release(*other)
    assert search.ask() == run
    assert search.outlook.startswith("next is layer")


def test_nothing_to_train_until_runs_are_told() -> None:
    search = LayerSearch(n_blocks=2, seeds=1)
    runs = search.ask(9)
    assert list(map(tuple, runs)) == [(0, 0), (1, 0), (2, 0)]
    assert search.ask() is None
    assert search.ask(2) == []
    assert search.outlook.startswith("nothing to train until the pending runs are reported (3): ")


def test_failed_runs_cost_and_their_layer_is_left_out() -> None:
    search = LayerSearch(n_blocks=N_BLOCKS, start=4, budget=0.9)
    search.tell(4, 0, None)
    search.tell(5, 0, right(5, 0))
    search.tell(4, 1, None)
    found = search.answer()
    assert found.layers[4].failed == 2
    assert found.spent == 16
    assert found.layers[4].chance_best == 0


def test_folds_have_items_of_their_own() -> None:
    search = LayerSearch(n_blocks=N_BLOCKS, folds=2)
    search.tell(4, 0, right(4, 0))
    search.tell(4, 1, right(4, 1)[1:])
    with pytest.raises(DataError, match=r"expected 119 numbers, one per item, as for layer 4, seed 1, got 120 numbers"):
        search.tell(5, 1, right(5, 1))
    search.tell(5, 3, right(5, 1)[1:])
    assert search.answer().layers[4].runs == 2


# ---- any unit and direction -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "shift", "settings", "items"),
    [
        (100.0, 0.0, {}, True),  # percentages
        (-30.0, 25.0, {"higher_is_better": False, "unit": 0.3}, True),
        (1e6, -5e8, {"unit": 1e4}, True),
    ],
)
def test_decisions_are_the_same_in_any_unit_and_direction(
    scale: float, shift: float, settings: dict[str, Any], items: bool
) -> None:
    plain = LayerSearch(n_blocks=N_BLOCKS, tolerance=1, budget="50%", seeds=2)
    other = LayerSearch(n_blocks=N_BLOCKS, tolerance=1, budget="50%", seeds=2, **settings)
    while run := plain.ask():
        assert other.ask() == run
        scores = right(*run).astype(float)
        plain.tell(*run, scores if items else scores.mean())
        other.tell(*run, scale * scores + shift if items else scale * scores.mean() + shift)
    assert other.ask() is None
    expected, answered = plain.answer(), other.answer()
    for name in ("best_layer", "candidates", "worse", "smallest_sufficient", "verdict", "spent"):
        assert getattr(answered, name) == getattr(expected, name)
    means, chances = (
        [[getattr(belief, n) for belief in a.layers] for a in (expected, answered)] for n in ("mean", "chance_best")
    )
    np.testing.assert_allclose(chances[1], chances[0], atol=0.003)
    point = abs(scale) * 0.01
    assert answered.unit == pytest.approx(point)
    np.testing.assert_allclose(np.array(means[1]) * point, scale * 0.01 * np.array(means[0]) + shift, rtol=1e-6)
    if expected.whole is not None and answered.whole is not None:
        assert answered.whole.value == pytest.approx(math.copysign(1, scale) * expected.whole.value, rel=1e-4)
    assert all(
        low <= mean <= high for mean, (low, high) in ((belief.mean, belief.interval) for belief in answered.layers)
    )
    facts, metric = answered.conclusion.facts, str(answered.conclusion.names["metric"])
    assert ("(lower is better)" in metric) == (scale < 0)
    assert (f"score x {1 / answered.unit:g}" in metric) == (answered.unit != 1)
    if "gain" in expected.conclusion.facts:
        assert math.copysign(1, facts["gain"].value) == math.copysign(1, scale)


def test_the_first_score_says_what_a_point_is_and_the_file_keeps_it(tmp_path: Path) -> None:
    for first, point in ((0.0, 0.01), (1.0, 0.01), (-0.3, 0.01), (2.31, 0.1), (83.1, 1.0), (-235.0, 10.0)):
        path = tmp_path / f"{first}.json"
        search = LayerSearch(path, n_blocks=N_BLOCKS, higher_is_better=False)
        search.tell(3, 0, first)
        search.tell(4, 0, first + 9 * point)
        again = LayerSearch(path, n_blocks=N_BLOCKS, higher_is_better=False)
        assert again.answer().unit == LayerSearch(path).answer().unit == pytest.approx(point)
        assert again.answer().layers[3].mean == pytest.approx(first / point, abs=2)
        assert again.answer().best_layer == 3
        with pytest.raises(DataError, match="holds a search with other settings"):
            LayerSearch(path, n_blocks=N_BLOCKS)


def test_shares_and_correlations_are_expected_between_what_they_can_be() -> None:
    for scores, most in (((0.99, 0.995), 100), ((0.99, 1.01), 1000)):
        search = LayerSearch(n_blocks=N_BLOCKS)
        for layer, score in enumerate(scores, 5):
            search.tell(layer, 0, score)
        assert (max(belief.interval[1] for belief in search.answer().layers) <= 100) == (most == 100)


def test_the_answer_is_a_result_as_all_others(tmp_path: Path) -> None:
    search = LayerSearch(n_blocks=N_BLOCKS, budget=0.3, higher_is_better=False)
    while run := search.ask():
        search.tell(*run, 5 * (1 - right(*run)))
    answered = search.answer()
    assert_keeps_contract(answered)
    assert lp.load(lp.save(answered, tmp_path / "answer.json")) == answered
    assert list(answered.to_pandas().kept.to_numpy().nonzero()[0]) == [answered.best_layer]
    quantities = {column.quantity.unit: column.quantity.best for column in answered.table.columns if column.quantity}
    assert quantities == {"score x 10": "lower", "points over the whole model": "lower"}


# ---- the file -------------------------------------------------------------------------------------------


def run_python(code: str, path: Path) -> subprocess.Popen[str]:
    code = f"import sys\nfrom layerprobe.search import ask\nsearch = ask.LayerSearch(sys.argv[1], n_blocks=12)\n{code}"
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)


def test_processes_that_share_a_file_get_different_runs(tmp_path: Path) -> None:
    ask = "for _ in range(4): print(*search.ask())\nsearch.tell(0, int(sys.argv[1][-1] == 'x'), 0.5)"
    with run_python(ask, tmp_path / "s") as one, run_python(ask.replace("== 'x'", "!= 'x'"), tmp_path / "s") as two:
        lines = [*(one.stdout or ()), *(two.stdout or ())]
    assert (one.returncode, two.returncode) == (0, 0)
    assert len(set(lines)) == len(lines) == 8
    assert len(LayerSearch(tmp_path / "s").pending) >= 6  # layer 0 may be among those asked for
    assert LayerSearch(tmp_path / "s").answer().layers[0].runs == 2


def test_a_kill_leaves_the_file_as_it_was_and_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    killed = "\n".join(
        (
            "import os, signal, pathlib",
            "print(*search.ask(worker='7'), flush=True)",
            "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
            "search.tell(0, 0, 0.5)",
        )
    )
    with run_python(killed, path) as process:
        (line,) = process.stdout or ()
    assert process.returncode == -signal.SIGKILL
    search = LayerSearch(path)
    assert tuple(search.ask(worker="7") or ()) == tuple(map(int, line.split()))
    search.tell(0, 0, 0.5)


def test_a_search_goes_on_and_one_with_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    search = LayerSearch(path, n_blocks=N_BLOCKS, seeds=range(3))
    search.tell(4, 0, right(4, 0))
    for same in (LayerSearch(path), LayerSearch(path, n_blocks=N_BLOCKS, seeds="3"), lp.LayerSearch(str(path))):
        assert same.answer() == search.answer()
    with pytest.raises(DataError, match=r"holds a search with other settings: open it by its path alone"):
        LayerSearch(path, n_blocks=N_BLOCKS, tolerance=2)
    with pytest.raises(DataError, match=r"expected n_blocks=\.\.\., .*: there is no search at .*none\.json"):
        LayerSearch(tmp_path / "none.json")


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    LayerSearch(path, n_blocks=N_BLOCKS).tell(4, 0, right(4, 0))
    whole = path.read_text()
    for text in (whole[:-20], whole.replace('"seed": 0', '"seed": 1', 1), "{}", "[1]", json.dumps({"evidence": {}})):
        path.write_text(text)
        with pytest.raises(DataError, match=r"search\.json is damaged, or not a search: .*; start a new one") as raised:
            LayerSearch(path)
        assert "\n" not in str(raised.value)
    with pytest.raises(DataError, match=r"cannot use .*: .*: choose a path"):
        LayerSearch(path / "below.json", n_blocks=3)
    with pytest.raises(DataError, match=r"cannot use .*: .*directory.*: choose a path"):
        LayerSearch(tmp_path)


def test_layers_below_0_count_from_the_last_one() -> None:
    search = LayerSearch(n_blocks=N_BLOCKS, start=-1)
    assert tuple(search.ask() or ()) == (N_BLOCKS, 0)
    search.release(-1, 0)
    search.tell(-1, 0, 0.5)
    with pytest.raises(DataError, match=f"layer {N_BLOCKS}, seed 0 was reported before"):
        search.tell(N_BLOCKS, 0, 0.5)


WRONG: list[tuple[str, Any, str]] = [
    ("tell", (9, 0, 0.5), "expected layers from 0 to 6 of the model, got 9"),
    ("tell", (1, -1, 0.5), "got layer 1, seed -1"),
    ("tell", (4, 0, right(4, 0)), "layer 4, seed 0 was reported before"),
    ("tell", (1, 0, 0.5), "expected 120 numbers, one per item, as for layer 4, seed 0, got one number for layer 1"),
    ("tell", (1, 0, np.nan), "expected finite scores for layer 1, seed 0, got NaN or infinity: report None for a"),
    ("tell", (1, 0, np.full(120, 83.1)), "expected scores as large as the first, where a point is 0.01, got 83.1 for"),
    ("tell", (1, 0, 1e300), "expected finite scores"),
    ("tell", (1, 0, [[0.5]]), r"expected a number, or one for each of two or more items, got \(1, 1\)"),
    ("tell", (1, 0, "good"), "expected a number, or one per item, for layer 1, seed 0, got 'good'"),
    ("ask", (0,), "expected a number of runs to train, 1 or more, got 0"),
    ("release", (1, 0), "expected a pending run, got layer 1, seed 0"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG)
def test_a_wrong_call_is_one_line_and_changes_nothing(name: str, arguments: Any, message: str) -> None:
    search = LayerSearch(n_blocks=N_BLOCKS)
    search.tell(4, 0, right(4, 0))
    before = search._state
    with pytest.raises(DataError, match=message) as raised:
        getattr(search, name)(*arguments)
    assert "\n" not in str(raised.value)
    assert search._state is before


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"n_blocks": 0}, "expected a model with at least one block"),
        ({"n_blocks": "8"}, "expected n_blocks as a whole number, got '8'"),
        ({"n_blocks": 6, "budget": 0.01}, "expected a budget for at least one run"),
        ({"n_blocks": 6, "start": 9}, "expected layers from 0 to 6 of the model, got 9"),
        ({"n_blocks": 6, "folds": 0}, "expected at least one fold"),
        ({"n_blocks": 6, "readings": {"InfoNCE": [1.0]}}, "expected InfoNCE at 7 layers, 0 to 6, got 1 numbers"),
        ({"n_blocks": 1, "readings": {"InfoNCE": [1.0, math.inf]}}, "expected finite readings of every layer, got NaN"),
        ({"n_blocks": 6, "readings": [1.0]}, "expected readings as numbers by layer under their names"),
        ({"n_blocks": 6, "unit": 0}, "expected unit as a number above 0, the size of a point, such as 0.01, got 0"),
        ({}, "expected n_blocks="),
    ],
)
def test_wrong_settings_make_no_file(tmp_path: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        LayerSearch(tmp_path / "search.json", **keywords)
    assert not list(tmp_path.glob("*"))


def test_a_search_of_0_4_says_of_each_run_that_it_is_no_scan() -> None:
    state = LayerSearch(n_blocks=6).state
    data = to_dict(state)
    data["settings"]["scan"] = False
    assert from_dict(SearchState, data) == state
    data["settings"]["scan"] = True
    with pytest.raises(DataError, match="a search with --scan, runs of all layers at once, is no longer supported"):
        from_dict(SearchState, data)
