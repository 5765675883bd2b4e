"""Shrinking from a model and texts to a verdict: on tiny models, whose numbers are those of other ways to them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from layerprobe.encoders import graphs as choice
from layerprobe.encoders import loading as encoder_options
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.export.run import export_model
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning import tmft, tuning
from layerprobe.finetuning.runs import MODEL
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.interval import Interval
from layerprobe.metrics.scores import cosine_scores, spearman
from layerprobe.results import words
from layerprobe.results.conclusion import Choice, Verdict
from layerprobe.results.draw import figures
from layerprobe.results.shown import read_result
from layerprobe.scoring.score import score
from layerprobe.shrinking import points_lost, teacher
from layerprobe.shrinking import run as shrinking
from layerprobe.shrinking.run import plan_shrinking, shrink
from layerprobe.shrinking.teacher import agreement
from layerprobe.shrinking.values import PointsLost, Served, ShrinkSettings, Shrunk, SmallerVocabulary
from layerprobe.stats.crossed import crossed
from layerprobe.tasks.values import Task
from tests.encoders import vocabularies
from tests.export.judges import sentence_transformer
from tests.export.test_sentence_transformers import built, mean
from tests.few import few
from tests.images import digit_folder, item_of, save_vision
from tests.models import save_tiny, store_as, stored_bytes
from tests.shown import assert_shows_itself
from tests.toy_task import toy_task_of

WORDS = ("fox", "dog", "cat", "bird", "cow", "ant", "bee")
TEXTS = [f"{' '.join(words)} run." for words in itertools.permutations(WORDS, 3)]
PROTOCOL = Protocol(learning_rate=2e-3, epochs=2, batch_size=16, dropout=False, evaluations=3)
TUNING = Protocol(learning_rate=1e-3, epochs=1, batch_size=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("model"), num_hidden_layers=4))


@pytest.fixture(autouse=True, scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERPROBE_CACHE", str(tmp_path_factory.mktemp("store")))
        patch.setattr(shrinking, "NO_TEACHER", -100.0)  # random weights
        patch.setattr(shrinking, "TIMED", dataclasses.replace(shrinking.TIMED, rounds=1, repeats=1, warmup=1))
        yield


def shrunk(folder: Any, task: Task | None = None, **how: Any) -> Shrunk:
    return shrink(folder, TEXTS, task, **options(how))


def options(how: dict[str, Any]) -> dict[str, Any]:
    """Return few steps and what is asked for; settings are given by their names."""
    names = {field.name for field in dataclasses.fields(ShrinkSettings)} & set(how)
    settings = ShrinkSettings(**{name: how[name] for name in names})
    return {"protocol": PROTOCOL, "settings": settings, **{name: how[name] for name in how if name not in names}}


def last_layer(model: Any) -> np.ndarray:
    stored = extract(model, TEXTS)
    return np.asarray(stored.layer(stored.n_layers - 1))


def test_training_makes_it_agree(folder: str) -> None:
    protocol = dataclasses.replace(PROTOCOL, learning_rate=1e-2, epochs=5)
    small = shrunk(folder, size=[4], protocol=protocol).smaller
    whole, before = last_layer(folder), last_layer(Model(folder, blocks=(4,)))
    after = last_layer(f"{small.folders[0]}/{MODEL}")
    assert agreement(after, whole) > agreement(before, whole) + 0.01
    cosines = [cosine_scores(each, whole).mean() for each in (before, after)]
    assert cosines[1] > cosines[0] + 0.1


def test_queries_by_the_smaller_model_and_documents_by_the_whole_one(tmp_path: Path) -> None:
    """By hand, with both in sentence-transformers; and by the code on the card of the export."""
    folder, task = built(tmp_path, mean(), prompts={"query": "a b ", "document": "c "}), toy_task_of("retrieval")
    result, items = shrunk(folder, task, size=1, seeds=2), task.test
    both, asymmetric = result.smaller.as_it_is, result.smaller.asymmetric
    assert both is not None
    assert asymmetric is not None
    assert result.prompts == ("a b ", "c ")
    whole = sentence_transformer(folder)
    for number, run in enumerate(result.smaller.folders):
        out = tmp_path / f"small-{number}"
        export_model(run, out, made=result.account, prompts=result.prompts)
        small = sentence_transformer(out)
        for way, model in (both, small), (asymmetric, whole):
            documents = model.encode(list(items.documents), prompt="c ")
            similarities = np.asarray(small.similarity(small.encode_query(list(items.queries)), documents))
            relevant = similarities[np.arange(len(items)), [judged[0][0] for judged in items.relevance]]
            ranks = 1 + (similarities > relevant[:, None]).sum(axis=1)
            gains = (1 / np.log2(1 + ranks))[ranks <= 10]
            assert way.small[number] == pytest.approx(100 * gains.sum() / len(items))
    assert (asymmetric.whole, asymmetric.small == both.small) == (both.whole, False)
    assert both.whole == pytest.approx((score(folder, task).scores[-1],))
    for way in both, asymmetric:
        assert way.error is not None
        assert (way.error.n_seeds, way.error.n_items, way.error.level) == (2, len(items), 0.95)
        assert way.value == pytest.approx(way.error.value)
    text, values = (out / "README.md").read_text(), dict[str, Any]()
    code = text.partition("whole one")[2].split("```python")[1].split("```")[0]
    exec(code.replace("path/to/this/folder", str(out)).replace("path/to/model", str(folder)), values)
    np.testing.assert_array_equal(values["queries"], small.encode(["A question?"], prompt="a b "))
    np.testing.assert_array_equal(values["documents"], whole.encode(["A document.", "Another one."], prompt="c "))
    assert values["similarities"].shape == (1, 2)
    assert "and only queries by this one, likewise without fine-tuning, it is " in text.partition("How it was made")[2]
    assert "Queries and documents" in assert_shows_itself(result, tmp_path)
    scores = [np.mean(scores) for scores in (both.small, asymmetric.small, both.whole)]
    assert [*result.sides.column("score").values] == pytest.approx(scores)
    after = dataclasses.replace(result, tried=(dataclasses.replace(result.smaller, tuned=both),))
    assert after.sides.notes == ("Before fine-tuning: a fine-tuned model needs an index of its own.",)
    assert "asymmetric" not in after.facts
    assert [group.name for group in result.item_source.groups][2] == "smaller model for queries, whole for documents"


@pytest.mark.parametrize(("kind", "how"), [("retrieval", {"dimensions": 4}), ("sts", {})])
def test_documents_by_the_whole_model_need_queries_and_its_dimensions(
    folder: str, kind: str, how: dict[str, Any]
) -> None:
    result = shrunk(folder, toy_task_of(kind), size=2, **how)
    assert (result.smaller.asymmetric, result.prompts) == (None, None)
    assert "asymmetric" not in result.facts
    assert [table.title for table in result.details] == ["Trained sizes"]


@pytest.mark.slow
def test_fewer_dimensions_are_measured_and_exported(folder: str, tmp_path: Path) -> None:
    task = toy_task_of("sts")
    result = shrunk(folder, task, size=2, dimensions=4)
    assert "Its embeddings keep 4 of 16 dimensions" in result.account
    theirs = extract(f"{result.folder}/{MODEL}", [*task.test.texts, *TEXTS])
    weight = load_file(f"{result.dense}/model.safetensors")["linear.weight"]
    np.testing.assert_allclose(weight @ weight.T, np.eye(4), atol=1e-5)
    u, v = (theirs.layer(2)[theirs.rows(side)] @ weight.T for side in task.test.sides)
    assert result.smaller.as_it_is is not None
    assert result.smaller.as_it_is.small[0] == pytest.approx(100 * spearman(cosine_scores(u, v), task.test.gold))
    whole = last_layer(folder)
    small = theirs.layer(2)[theirs.rows(TEXTS)]
    lost = [1 - agreement(small @ each.T, whole) for each in (weight, np.eye(16)[:4])]
    assert lost[0] < lost[1], "expected it to be better than the first dimensions"
    export_model(result.folder, tmp_path / "small", made=result.account, dense=result.dense)
    encoded = SentenceTransformer(str(tmp_path / "small"), device="cpu").encode(TEXTS[:4], convert_to_numpy=True)
    np.testing.assert_allclose(encoded, (small @ weight.T)[:4], atol=1e-6)
    card = (tmp_path / "small" / "README.md").read_text()
    assert "4 of 16 dimensions" in card
    assert "with Dense" in card
    with pytest.raises(DataError, match="expected the directory of a run"):
        export_model(folder, tmp_path / "other", layer=2, dense=result.dense)
    with pytest.raises(DataError, match="has none; run shrink again"):
        export_model(result.folder, tmp_path / "other", dense=tmp_path)
    Path(f"{result.dense}/model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"expected a map to fewer dimensions: .* run shrink again"):
        export_model(result.folder, tmp_path / "other", dense=result.dense)


@pytest.mark.slow
def test_ways_to_run_it_are_measured(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    monkeypatch.setattr(shrinking, "SIZES", 2)
    result = shrunk(folder, toy_task_of("sts"), size=2, dimensions=4, front=True)
    timed = [way for way in result.front if way.milliseconds is not None]
    others = [(len(way.blocks), way.dimensions, way.run_by, way.seeds) for way in result.front if way not in timed]
    assert sorted(others) == sorted(itertools.product((2, 1), (16, 4), ("torch", "onnx int8"), (0,)))
    assert len(timed) == 2 * 2 * 7
    ways = {(len(way.blocks), way.run_by, way.dimensions): way for way in timed}
    whole, small = ways[4, "torch", 16], ways[2, "torch", 4]
    assert whole.loss is not None
    assert (whole.loss.value, whole.agreement) == (0.0, pytest.approx(100))
    assert small.loss is not None
    assert small.loss == result.smaller.loss
    assert small.loss.small != ways[2, "torch", 16].loss.small, "expected fewer dimensions to change it"
    assert small.agreement == pytest.approx(result.smaller.agreement[0])
    for (blocks, run_by, dimensions), way in ways.items():
        by_torch = ways[blocks, "torch", dimensions]
        assert way.interval[0] <= way.milliseconds <= way.interval[1]
        assert way.agreement == pytest.approx(by_torch.agreement, abs=2.0 if "int8" in run_by else 1e-3)
        assert (way.weights == by_torch.weights) is ("int8" not in run_by)
        if "int8" in run_by and dimensions == 16 and blocks == 4:
            assert way.agreement < 100 - 1e-6, "expected rounding"
    assert len(result.ways) == len(result.front)
    assert [figure.name for figure in figures(result)][-2:] == ["sizes", "front"]
    assert result.item_source is not None
    assert result.item_source.groups[1].scores == pytest.approx(result.smaller.loss.small)
    assert read_result(result.to_json()) == result


def test_the_fastest_way_to_run_it(folder: str) -> None:
    result = shrunk(folder, size=2)

    def way(run_by: str, milliseconds: float, blocks: tuple[int, ...] = result.smaller.blocks) -> Served:
        none = {"weights": 9, **dict.fromkeys(("chosen_by", "loss", "score_interval"))}
        timed: Any = {"milliseconds": milliseconds, "interval": (0.0, 9.0), "agreement": 90.0, **none}
        return Served(blocks=blocks, dimensions=16, run_by=run_by, seeds=1, **timed)

    def fastest(*ways: Served) -> str | None:
        return dataclasses.replace(result, front=ways).fastest_int8

    assert fastest() is None
    assert fastest(way("torch", 3), way("openvino int8", 1), way("onnx int8", 2)) == "openvino"
    assert fastest(way("onnx int8 weights", 1), way("onnx int8", 2)) is None
    assert fastest(way("openvino bfloat16", 1), way("onnx int8", 2)) is None
    assert fastest(way("onnx int8", 2), way("torch", 1, blocks=(4,))) == "onnx"
    few = SmallerVocabulary(kept=9, whole=99, missing=0.0, missing_on_task=None)
    fast, other = dataclasses.replace(way("onnx int8", 2), tokens=9), way("torch", 1)
    of_few = dataclasses.replace(result, front=(fast, other), vocabulary=few)
    assert of_few.fastest_int8 == "onnx", "expected the ways of the whole vocabulary to be left out"
    assert of_few.ways.column("tokens").values == (99, 9)


def test_ways_to_run_a_model_of_images_are_no_such(tmp_path: Path) -> None:
    images = [item_of(path) for path in sorted(digit_folder(tmp_path / "digits", n=60).rglob("*.png"))]
    with pytest.raises(DataError, match="expected a text model on a CPU to measure backends"):
        shrink(save_vision("vit", tmp_path / "model"), images, **options({"size": 1, "front": True}))


def test_after_fine_tuning_both(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy_task_of("sts")
    result = shrunk(folder, task, size=2, tune=TUNING, seeds=2)
    loss = result.smaller.tuned
    assert loss is result.smaller.loss
    assert loss is not None
    monkeypatch.setattr("layerprobe.finetuning.runs.fine_tune", lambda *_, **__: pytest.fail("expected it to be read"))
    whole = finetune(folder, task, [4], seeds=2, protocol=TUNING).runs
    assert loss.whole == pytest.approx([run.test["spearman"] for run in whole])
    small = [
        finetune(Model(f"{each}/{MODEL}", end_token=False), task, [2], seeds=[seed], protocol=TUNING).runs[0]
        for seed, each in enumerate(result.smaller.folders)
    ]
    assert loss.small == pytest.approx([run.test["spearman"] for run in small])
    assert "after fine-tuning both" in result.account


@pytest.mark.slow
def test_a_kind_that_needs_fine_tuning(folder: str) -> None:
    with pytest.raises(DataError, match="only scored after fine-tuning: add --tune"):
        shrunk(folder, toy_task_of("entities"), size=2)
    loss = shrunk(folder, toy_task_of("entities"), size=2, tune=TUNING).smaller
    assert loss.as_it_is is None
    assert loss.tuned is not None


@pytest.mark.slow
def test_the_fewest_blocks_within_the_margin_are_sought(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = toy_task_of("sts"), []
    measured = shrinking._Work.measured

    def known(work: Any, k: int, split: str, seeds: Any) -> Any:
        asked.append((k, split))
        small = measured(work, k, split, seeds)
        if split == "validation":
            error = dataclasses.replace(small.chosen_by.error, interval=(0.0, 3.0 if k < 3 else 0.5))
            small = dataclasses.replace(small, chosen_by=dataclasses.replace(small.chosen_by, error=error, failure=0.0))
        return small

    monkeypatch.setattr(shrinking._Work, "measured", known)
    result = shrunk(folder, task, within=1.0)
    assert asked == [(2, "validation"), (3, "validation"), (3, "test")]
    assert len(result.smaller.blocks) == 3
    assert result.smaller.chosen_by is not None
    assert [len(each.blocks) for each in result.tried] == [2, 3]


@pytest.mark.parametrize(("size", "blocks"), [("80%", 2), ("1.01x", 3)])
def test_a_size_leads_to_the_most_blocks_that_fit(
    folder: str, monkeypatch: pytest.MonkeyPatch, size: str, blocks: int
) -> None:
    monkeypatch.setattr(shrinking._Work, "speeds", lambda work, sizes: {k: (work.n_blocks / k,) * 3 for k in sizes})
    result = shrunk(folder, size=size)
    assert len(result.smaller.blocks) == blocks
    if size == "80%":
        assert result.smaller.parameters <= 0.8 * result.model.parameters[-1] < result.model.parameters[blocks + 1]


def test_blocks_are_chosen_once(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shrunk(folder, size=2)
    monkeypatch.setattr(teacher, "removal_order", lambda _: pytest.fail("expected the order from the store"))
    assert shrunk(folder, size=2).removals == first.removals


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shrunk(Model(folder, cache_dir=tmp_path / "whole"), size=[2, 4])
    monkeypatch.setattr(tmft, "SAVE_AFTER", 0.0)
    killed = Model(folder, cache_dir=tmp_path / "killed")
    begun: list[int] = []
    epoch = FineTuner.epoch

    def dying(tuner: FineTuner, *arguments: Any, **options: Any) -> list[float]:
        begun.append(tuner.step)
        if len(begun) in (3, 5):
            raise KeyboardInterrupt
        return epoch(tuner, *arguments, **options)

    monkeypatch.setattr(FineTuner, "epoch", dying)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            shrunk(killed, size=[2, 4])
    result = shrunk(killed, size=[2, 4])
    steps = math.ceil(result.n_texts / PROTOCOL.batch_size)
    parts = [steps // 3, 2 * steps // 3, steps, steps + steps // 3, steps + 2 * steps // 3]
    assert begun == [0, parts[0], parts[1], parts[1], parts[2], parts[2], parts[3], parts[4]]
    files = [Path(each.folder) / MODEL / "model.safetensors" for each in (whole, result)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert result.smaller.agreement == whole.smaller.agreement


def test_a_teacher_that_is_no_good(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "NO_TEACHER", 100.0)
    with pytest.raises(DataError, match="they are no teacher for it: expected a sentence encoder"):
        shrunk(folder, toy_task_of("sts"), size=2)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"size": 0.5}, "expected a number of blocks such as 3"),
        ({"size": True}, "expected a number of blocks such as 3"),
        ({"size": ["a"]}, "expected a number of blocks such as 3"),
        pytest.param(
            {"size": "1000x"},
            r"reached: a model of one block is (about as fast|[\w .]*times as fast).*, got 1000x$",
            marks=pytest.mark.slow,  # measures how fast they are
        ),
        ({"within": "1"}, "expected a number of points above 0 .*, got '1'"),
        ({"dimensions": 4.5}, "expected a number of dimensions to keep, got 4.5"),
        ({"settings": 2.0}, r"expected settings as ShrinkSettings\(...\), got 2.0"),
        ({"vocabulary": True}, "expected a number of tokens such as 16000, .*, got True"),
    ],
    ids=str,
)
def test_what_cannot_be(folder: str, how: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "extract", lambda *_: pytest.fail("expected it to be refused before anything"))
    with pytest.raises(DataError, match=said):
        shrunk(folder, **how)
    with pytest.raises(DataError, match=said):
        plan_shrinking(folder, TEXTS, **options(how))


def test_a_plan_writes_nothing_and_counts_sizes(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(folder, cache_dir=tmp_path)
    assert plan_shrinking(model, TEXTS, protocol=PROTOCOL).seconds > 0
    monkeypatch.setattr(tuning, "seconds_of_run", lambda *_, **__: (80.0, 1.0))
    planned = plan_shrinking(model, TEXTS, toy_task_of("sts"), tune=TUNING, seeds=3, protocol=PROTOCOL)
    assert (planned["n_texts"], planned["sizes"], planned["seeds"]) == (len(TEXTS), 2, 3)
    assert planned.seconds > plan_shrinking(model, TEXTS, protocol=PROTOCOL).seconds
    assert "210 texts are embedded once" in planned.sentence
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("embeddings/*"))


def test_a_plan_counts_the_blocks_that_are_left(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "seconds_of_run", lambda *_, **__: (80.0, 1.0))
    texts = len(TEXTS) / (len(TEXTS) - 2 * 21)
    one, three = (plan_shrinking(folder, TEXTS, size=size, protocol=PROTOCOL) for size in ([1], [1, 2, 4]))
    embedding = 5 / 3 / PROTOCOL.epochs
    assert one.seconds == pytest.approx(80 / 5 * (2 + embedding) * texts)
    assert three.seconds == pytest.approx(80 / 5 * (4 + embedding) * texts)
    task = toy_task_of("sts")
    split = [sum(map(len, task.texts(each))) for each in ("validation", "test")]
    scoring = (3 * 2 + 5) * sum(split) / sum(map(len, TEXTS)) / 3 / PROTOCOL.epochs
    scored = plan_shrinking(folder, TEXTS, task, size=[1], seeds=3, protocol=PROTOCOL)
    assert scored.seconds == pytest.approx(80 / 5 * (3 * 2 + embedding + scoring) * texts)
    tuned = plan_shrinking(folder, TEXTS, task, size=[1], seeds=3, tune=TUNING, protocol=PROTOCOL)
    assert tuned.seconds == pytest.approx(scored.seconds + 80 / 5 * (3 * 2 + 3 * 5))


def test_a_plan_counts_what_front_measures(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "seconds_of_run", lambda *_, **__: (80.0, 1.0))
    plain, front = (plan_shrinking(folder, TEXTS, **options({"size": [1], "front": front})) for front in (False, True))
    assert front.seconds > plain.seconds + 2 * shrinking.SECONDS
    assert front.sentence.endswith("1 size trained with 1 seed; 2 models are measured for --front.")
    scored = plan_shrinking(folder, TEXTS, toy_task_of("sts"), **options({"size": [1], "front": True, "seeds": 2}))
    assert "; 7 models are measured" in scored.sentence, "expected the whole one, two seeds and four sizes"
    assert scored.seconds > front.seconds
    fewer = plan_shrinking(folder, TEXTS, **options({"size": [1], "dimensions": 4}))
    assert fewer.seconds > plain.seconds


@pytest.mark.slow
def test_texts_that_the_task_tests_are_left_out(folder: str) -> None:
    task = toy_task_of("sts")
    tested = [next(iter(task.test.sides[1])).upper(), f" {task.test.sides[0][0]} ", task.validation.sides[0][1]]
    result = shrunk(folder, task, size=[4], protocol=PROTOCOL)
    spoilt = shrink(folder, [*TEXTS, *tested], task, size=[4], protocol=PROTOCOL)
    assert spoilt.smaller.folders == result.smaller.folders
    (warning,) = spoilt.warnings
    assert warning == (
        "of 213 texts to train on, the task has 2 in its test split and 1 in its validation split: removed; "
        "--keep-overlaps keeps such texts"
    )
    assert plan_shrinking(folder, [*TEXTS, *tested], task, size=1, protocol=PROTOCOL)["n_texts"] == 210
    spoiling = dataclasses.replace(task, keep_overlaps=True)
    kept = shrink(folder, [*TEXTS, *tested], spoiling, size=[4], protocol=PROTOCOL)
    assert kept.n_texts + 2 * kept.n_held_out == 213
    assert kept.warnings[0].endswith(
        "2 in its test split and 1 in its validation split; they are kept, so the loss is too optimistic"
    )
    with pytest.raises(DataError, match="got 0 that the task does not test"):
        shrink(folder, tested, task, size=1)


# ---- what is said ----------------------------------------------------------------------------------------


def loss(value: float, half: float, *, margin: float = 1.0) -> PointsLost:
    error = Interval(
        value=value,
        standard_error=half / 1.65,
        items_error=half / 1.65,
        seeds_error=None,
        freedom=1000,
        interval=(value - half, value + half),
        level=0.9,
        n_items=1000,
        n_seeds=1,
        unit="pair",
    )
    return PointsLost(metric="spearman", whole=(82.0,), small=(82.0 - value,), error=error, margin=margin)


@pytest.mark.parametrize(
    ("value", "half", "verdict"), [(0.4, 0.5, "within"), (0.4, 0.9, "not shown"), (3.0, 0.5, "worse")]
)
def test_the_verdict_is_by_the_upper_end(folder: str, value: float, half: float, verdict: str) -> None:
    found = loss(value, half)
    assert found.verdict == verdict
    plain = shrunk(folder, size=2)
    small = dataclasses.replace(plain.smaller, as_it_is=found, asymmetric=found)
    about = dataclasses.replace(plain, task="stsb", tried=(small,), within=1.0).conclusion
    verdicts = {"within": Verdict.DECIDED, "not shown": Verdict.UNDECIDED, "worse": Verdict.FAILED}
    assert about.verdict is verdicts[verdict]
    assert [about.facts[name].value for name in ("lost", "most")] == pytest.approx([value, value + half])
    ends = {"within": "are enough", "not shown": "may be enough", "worse": "are too few"}
    assert words.headline(about) == f"2 of 4 blocks {ends[verdict]}"
    (settled,) = (words.line(check, about)[1] for check in about.checks if check.name == "loss")
    assert settled == ("About 2,300 test items would settle it" if verdict == "not shown" else "")
    index, needed = words.line(about.checks[0], about)
    assert needed == settled
    starts = {
        "within": "Your index need not be rebuilt: with queries by this model, 0.4 points lost, 0.9 at most",
        "not shown": "Not decided whether your index must be rebuilt: with queries by this model, 0.4 points lost, 1.3",
        "worse": "Rebuild your index, or keep the whole model for queries: with queries by this model, 3.0 points lost",
    }
    assert index.startswith(starts[verdict])


@pytest.mark.parametrize(
    ("items", "seeds", "margin", "needed"),
    [
        (0.111, 0.65, 1.0, {"only_seeds": 3}),
        (0.6, 0.65, 1.0, {"items": 3800, "seeds": 3}),
        (0.6, 0.01, 1.0, {"items": 3900}),
        (0.6, 0.0, 0.4001, {}),
    ],
)
def test_what_would_show_a_loss_counts_the_error_of_seeds(
    items: float, seeds: float, margin: float, needed: dict[str, int]
) -> None:
    """Scores of two seeds and 1,000 items whose errors are these, and whose mean is a loss of 0.4."""
    psi = np.tile(np.random.default_rng(0).permutation(np.repeat([-1.0, 1.0], 500)), (2, 1)) * items * math.sqrt(999)
    error = crossed([0.4 - seeds, 0.4 + seeds], psi, unit="pair")
    assert error is not None
    assert (error.items_error, error.seeds_error) == (pytest.approx(items), pytest.approx(seeds))
    found = PointsLost(metric="spearman", whole=(82.0,), small=(81.6,), error=error, margin=margin)
    assert found.verdict == "not shown"
    assert {name: fact.value for name, fact in found.needed.items()} == needed
    if list(needed) == ["items"]:
        more = crossed([0.4 - seeds, 0.4 + seeds], np.tile(psi, 4)[:, :3900])
        assert more is not None
        assert more.interval[1] == pytest.approx(margin, abs=0.01)


def test_it_shows_itself(folder: str, tmp_path: Path) -> None:
    result = shrunk(folder, toy_task_of("sts"), size=2)
    assert_shows_itself(result, tmp_path)
    assert "evenly spaced" in (tmp_path / "shown.html").read_text()
    assert [figure.name for figure in figures(result)] == ["sizes"]
    two = dataclasses.replace(result, tried=(result.smaller, dataclasses.replace(result.smaller, blocks=(1, 2, 3))))
    assert [figure.name for figure in figures(two)] == ["sizes", "losses-as_it_is"]
    assert "without labels" in result.account


@pytest.mark.slow
def test_no_model_is_loaded_beside_another_of_the_same(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole one to check the task, to embed, to choose blocks, to train the rest and to compare; the rest once."""
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path))
    loaded, at_once = list[weakref.ref[Any]](), list[int]()

    def loading(*given: Any, **how: Any) -> Encoder:
        encoder = load_encoder(*given, **how)
        loaded.append(weakref.ref(encoder.model))
        at_once.append(sum(each() is not None for each in loaded))
        return encoder

    monkeypatch.setattr(encoder_options, "load_encoder", loading)
    shrunk(folder, toy_task_of("sts"), size=2, dimensions=8)
    assert len(loaded) == 6
    assert max(at_once) == 2


def families(folder: Path, family: str = "wordpiece") -> str:
    return str(vocabularies.save(family, folder / family))


def of_sentences(model: Any, task: Task | None = None, texts: Any = vocabularies.ENGLISH, **how: Any) -> Shrunk:
    return shrink(model, texts, task, **options({"protocol": dataclasses.replace(PROTOCOL, batch_size=8), **how}))


@pytest.mark.parametrize("family", few(["wordpiece", "unigram", "byte_bpe"], lambda family: family == "unigram"))
def test_a_vocabulary_that_the_texts_need_loses_nothing(tmp_path: Path, family: str) -> None:
    folder = families(tmp_path, family)
    result = of_sentences(folder, vocabulary="corpus")
    small, vocabulary = result.smaller, result.vocabulary
    assert vocabulary is not None
    assert vocabulary.missing == 0
    assert small.blocks == (1, 2), "expected all blocks where the vocabulary goes and there is no task"
    assert small.agreement == pytest.approx((100,))
    assert small.parameters == result.model.parameters[-1] - 16 * (
        load_encoder(folder).model.config.vocab_size - vocabulary.kept
    )
    assert "nothing was trained" in result.account
    assert read_result(result.to_json()) == result
    out = tmp_path / "small"
    export_model(result.folder, out, made=result.account)
    ours, theirs = (extract(model, vocabularies.ENGLISH).layer(2) for model in (folder, str(out)))
    np.testing.assert_allclose(theirs, ours, atol=1e-6)
    encoded = SentenceTransformer(str(out), device="cpu").encode(vocabularies.ENGLISH, convert_to_numpy=True)
    np.testing.assert_allclose(encoded, ours, atol=1e-6)
    card = (out / "README.md").read_text()
    assert f"**Vocabulary:** {vocabulary.kept} of {vocabulary.whole} tokens" in card
    assert f"{small.parameters:,} instead of {result.model.parameters[-1]:,}" in card
    warnings = extract(str(out), vocabularies.GREEK).warnings
    assert any("of their tokens were removed from its vocabulary" in warning for warning in warnings)


def test_what_needs_no_training_is_timed_beside_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points_lost, "_graphs", lambda *_, **__: {})
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    folder = store_as(Path(families(tmp_path)), "float16")
    result = of_sentences(folder, vocabulary="corpus", front=True)
    whole, small = result.front
    assert whole.milliseconds is not None
    assert small.milliseconds is not None
    assert (whole.seeds, small.seeds) == (0, 1)
    assert (small.blocks, small.tokens < whole.tokens, small.weights < whole.weights) == (whole.blocks, True, True)
    assert small.agreement == pytest.approx(100)
    for model, way in ((folder, whole), (result.folder, small)):
        out = tmp_path / f"of {way.seeds} seeds"
        assert export_model(model, out, layer=2).dtype == "float16"
        assert way.weights == stored_bytes(out)


def test_a_smaller_vocabulary_is_healed_with_the_blocks(tmp_path: Path) -> None:
    folder, task = families(tmp_path), toy_task_of("sts")
    result = of_sentences(folder, task, size=1, vocabulary="60%", within=5)
    assert result.vocabulary is not None
    kept, whole = result.vocabulary.tokens
    assert kept == round(0.6 * whole)
    assert result.smaller.loss is not None
    assert f" {kept} of {whole} tokens" in words.sentence(result.conclusion)
    assert result.conclusion.choice == Choice(n_blocks=2, blocks=result.smaller.blocks)
    assert next(column.values for column in result.sizes.columns if column.name == "tokens") == [kept, whole]
    assert f"{kept} of {whole} tokens" in result.save_html(tmp_path / "page.html", plotly="cdn").read_text()
    assert read_result(result.to_json()) == result
    plan = plan_shrinking(folder, vocabularies.ENGLISH, task, **options({"size": 1, "vocabulary": "60%"}))
    assert plan.numbers["tokens"] == kept


def test_a_share_that_blocks_do_not_reach_names_the_tokens_that_do(tmp_path: Path) -> None:
    folder = str(vocabularies.save("wordpiece", tmp_path / "wordpiece"))
    left = "this size cannot be reached: a model of one block has .*, got 75%; 1 of 2 blocks fit with "
    with pytest.raises(DataError, match=rf"^{left}--vocabulary \d00$") as refused:
        of_sentences(folder, size="75%")
    result = of_sentences(folder, size="75%", vocabulary=str(refused.value).split()[-1])
    assert len(result.smaller.blocks) == 1
    assert result.smaller.parameters <= 0.75 * result.model.parameters[-1]


def test_a_task_in_another_language_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "missing_share", lambda tokenizer, texts: 0.25)
    result = of_sentences(families(tmp_path), toy_task_of("sts"), size="all", vocabulary=130)
    expected = "of the task's texts, 25 % of their tokens were removed from its vocabulary, which has 130 of 330 tokens"
    assert any(warning.startswith(expected) for warning in result.warnings)
