"""Score against size and time: what is measured of models of some blocks and dimensions, and how it is drawn."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel, load
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.values import Protocol
from layerprobe.results.draw import drawn
from layerprobe.scoring.score import score
from layerprobe.shrinking import points_lost
from layerprobe.shrinking.points_lost import Compared, served
from layerprobe.shrinking.teacher import Taught
from layerprobe.shrinking.values import PointsLost, Served, Shrunk, Smaller
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task
from tests.models import save_tiny
from tests.toy_task import toy_task_of

ALL = (1, 2, 3, 4)
PROTOCOL = Protocol(learning_rate=5e-4, epochs=1, batch_size=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("model"), num_hidden_layers=4))


def size(score: float, validation: float, blocks: tuple[int, ...] = ALL, **other: Any) -> Served:
    """Return a model with a score on test and on validation; the whole one scores 80."""
    loss = PointsLost(metric="spearman", whole=(80.0,), small=(score,), error=None, margin=1.0)
    values = {
        "tokens": 900,
        "dimensions": 16,
        "run_by": "torch",
        "seeds": 0,
        "weights": 1000,
        "milliseconds": None,
        "interval": None,
        "agreement": 90.0,
        "score_interval": (score - 2, score + 1),
    }
    return Served(blocks=blocks, chosen_by=validation, loss=loss, **{**values, **other})


def timed(milliseconds: float) -> dict[str, Any]:
    return {"milliseconds": milliseconds, "interval": (milliseconds - 0.1, milliseconds + 0.1)}


WHOLE = size(80.0, 82.0, weights=4000, **timed(3.0))
EIGHT = size(79.5, 81.5, run_by="onnx int8", weights=3000, **timed(2.0))
SLOW = size(79.6, 81.4, run_by="openvino int8", weights=4500, **timed(2.5))
FEWER = size(78.0, 80.0, dimensions=8, run_by="onnx int8", weights=3000)
TRAINED = size(79.0, 81.0, (1, 4), tokens=500, seeds=2, weights=2000)
LUCKY = size(79.9, 79.0, (1, 4), tokens=500, weights=2000)
FRONT = (WHOLE, EIGHT, SLOW, FEWER, TRAINED, LUCKY)


@pytest.fixture
def result(folder: str) -> Shrunk:
    small = Smaller(
        blocks=(1, 4), parameters=500, speed=None, folders=("runs/1",), agreement=(90.0,), neighbours=(70.0,),
        on_task=None, chosen_by=None, as_it_is=TRAINED.loss,
    )  # fmt: skip
    return Shrunk(
        model=load(resolve(Model(folder, display_name="org/whole"))).description,
        texts="some texts.txt", n_texts=900, n_held_out=50, task="pairs.csv", within=1.0, seeds=(0, 1),
        protocol=PROTOCOL, removals=(), tried=(small,), chosen=0, front=FRONT,
    )  # fmt: skip


def test_validation_chooses_the_front_and_test_is_drawn(result: Shrunk) -> None:
    table = result.ways
    assert dict(zip(table.column("score").values, table.column("front").values, strict=True)) == {
        78.0: "size", 79.9: "", 79.0: "size", 79.5: "size, time", 79.6: "", 80.0: "size, time",
    }  # fmt: skip
    assert [*table.column("bytes").values] == sorted(way.bytes for way in FRONT)
    assert FEWER.bytes == 3000 + 10_000 * 8 * 4
    by_size, by_time = (drawn(table, chart) for chart in table.charts)
    assert "Large point: on a front." in by_size.reading
    of_time = {trace.name: trace for trace in by_time.plot.data}
    assert [*of_time["openvino int8"].y] == [79.6]
    assert [*of_time["openvino int8"].error_x.array] == [pytest.approx(0.1)]
    assert [*of_time["torch"].y] == [80.0], "expected those that were timed alone"


def measured(folder: str, models: list[SharedModel], blocks: tuple[int, ...], task: Task) -> list[Served]:
    """Return two models' ways with all dimensions and with four."""
    compared = Compared(whole=models[0], task=task, tuning=None, margin=1.0)
    texts = task.texts("train")
    held_out = Taught.of(texts[:4], np.asarray(extract(folder, texts[:4]).layer(4)))
    return [*served(models[-1:], blocks, compared, held_out, texts, (16, 4), "float32", trained=False, timed=False)]


@pytest.mark.parametrize("kind", ["sts", "paraphrase", "classification", "retrieval"])
def test_what_is_measured_is_the_score_of_the_model(folder: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = checked_task(toy_task_of(kind)), resolve(folder)

    def no_graph(*_: Any, **__: Any) -> None:
        raise ModelError("it has no graph")

    monkeypatch.setattr(points_lost, "int8_graphs", no_graph)
    few = SharedModel(model.with_blocks((1, 4)))
    wide, narrow = measured(folder, [SharedModel(model), few], (1, 4), task)
    scored = score(Model(folder, blocks=(1, 4)), task)
    assert wide.score == pytest.approx(scored.scores[-1], abs=0.01)
    assert wide.loss is not None
    assert wide.loss.whole == pytest.approx((score(folder, task).scores[-1],), abs=0.01)
    assert wide.score_interval is not None
    assert wide.score_interval[0] <= wide.score <= wide.score_interval[1]
    assert (narrow.dimensions, narrow.weights - wide.weights) == (4, 4 * 4 * 16)
    assert wide.weights == 4 * (few.encoder.description.parameters[-1] + 16 * 17), (
        "expected the pooler, as in an export"
    )
    assert (wide.run_by, wide.seeds, wide.milliseconds) == ("torch", 0, None)
    whole = measured(folder, [SharedModel(model)], ALL, task)[0]
    assert whole.loss is not None
    assert whole.loss.value == 0.0, "expected the whole model to lose nothing against itself"
    assert whole.agreement == pytest.approx(100)


def test_a_result_without_ways_says_how_they_are_measured(result: Shrunk) -> None:
    with pytest.raises(DataError, match=r"no backends were measured: shrink with ShrinkSettings\(front=True\)"):
        dataclasses.replace(result, front=()).ways  # noqa: B018


@pytest.mark.slow
def test_eight_bits_lose_little(folder: str) -> None:
    pytest.importorskip("onnxruntime")
    whole, _, rounded, _ = measured(folder, [SharedModel(resolve(folder))], ALL, toy_task_of("sts"))
    assert (whole.run_by, rounded.run_by) == ("torch", "onnx int8")
    assert rounded.score == pytest.approx(whole.score, abs=5)
    assert rounded.loss != whole.loss
