"""Score against size: what is measured of models of some blocks, tokens, dimensions and bits, and how it is drawn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import Model
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import DataError, ModelError
from layerprobe.files.serialisation import from_json
from layerprobe.finetuning.values import Protocol
from layerprobe.results.choices import choices
from layerprobe.results.draw import drawn
from layerprobe.scoring.score import score
from layerprobe.shrinking import points_lost
from layerprobe.shrinking.page import shrunk_page
from layerprobe.shrinking.points_lost import Compared, sized
from layerprobe.shrinking.run import _some
from layerprobe.shrinking.values import PointsLost, Shrunk, Sized, Smaller
from tests.models import save_tiny
from tests.toy_task import toy_task_of

ALL = (1, 2, 3, 4)
PROTOCOL = Protocol(learning_rate=5e-4, epochs=1, batch_size=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("model"), num_hidden_layers=4))


def size(score: float, validation: float, blocks: tuple[int, ...] = ALL, **other: Any) -> Sized:
    """Return a model with a score on test and on validation; the whole one scores 80."""
    loss = PointsLost(metric="spearman", whole=(80.0,), small=(score,), error=None, margin=1.0)
    values = {
        "tokens": 900,
        "dimensions": 16,
        "bits": 32,
        "seeds": 0,
        "weights": 1000,
        "interval": (score - 2, score + 1),
    }
    return Sized(blocks=blocks, chosen_by=validation, loss=loss, **{**values, **other})


WHOLE = size(80.0, 82.0, weights=4000)
EIGHT = size(79.5, 81.5, bits=8, weights=3000)
FEWER = size(78.0, 80.0, dimensions=8, bits=8, weights=3000)
TRAINED = size(79.0, 81.0, (1, 4), tokens=500, seeds=2, weights=2000)
LUCKY = size(79.9, 79.0, (1, 4), tokens=500, weights=2000)


@pytest.fixture
def result(folder: str) -> Shrunk:
    small = Smaller(
        blocks=(1, 4), parameters=500, speed=None, folders=("runs/1",), agreement=(90.0,), neighbours=(70.0,),
        on_task=None, chosen_by=None, as_it_is=TRAINED.loss,
    )  # fmt: skip
    return Shrunk(
        model=load(resolve(Model(folder, display_name="org/whole"))).description,
        texts="some texts.txt", n_texts=900, n_held_out=50, task="pairs.csv", within=1.0, seeds=(0, 1),
        protocol=PROTOCOL, removals=(), tried=(small,), chosen=0, sizes=(WHOLE, EIGHT, FEWER, TRAINED, LUCKY),
    )  # fmt: skip


def test_validation_chooses_the_front_and_test_is_drawn(result: Shrunk) -> None:
    table = result.by_size
    assert dict(zip(table.column("score").values, table.marks, strict=True)) == {
        78.0: "chosen", 79.9: None, 79.0: "chosen", 79.5: "chosen", 80.0: "chosen",
    }  # fmt: skip
    assert [*table.column("bytes").values] == sorted(each.bytes for each in result.sizes)
    assert FEWER.bytes == 3000 + 10_000 * 8 * 4
    figure = drawn(table, table.charts[0]).plot
    lines = {trace.name: trace for trace in figure.data}
    front = lines["no model as small scores higher on validation"]
    assert [*front.y] == [78.0, 79.0, 79.5, 80.0]
    assert [*lines["2 blocks, trained"].y] == [79.0]
    assert [*lines["2 blocks, trained"].error_y.array] == [1.0]
    untrained = lines["4 blocks"]
    assert [*lines["2 blocks"].error_y.array] == [0.0]
    assert dict(zip(untrained.y, untrained.error_y.arrayminus, strict=True)) == {
        78.0: 2.0,
        79.5: 2.0,
        80.0: 2.0,
    }
    assert [*lines["the whole model"].y] == [80.0, 80.0]
    assert {*untrained.text} == {""}
    assert max(lines["the whole model"].x) == max(untrained.x)
    assert "Line: no model as small" in drawn(table, table.charts[0]).reading


def test_a_point_gives_the_command_that_makes_it(result: Shrunk) -> None:
    page = shrunk_page(result)
    shown, commands = choices(page)
    made = dict(zip(result.by_size.column("score").values, commands[shown["figures"]["sizes"]], strict=True))
    by_shrink = (
        "layerprobe shrink org/whole --texts 'some texts.txt' -t pairs.csv --size 1,4 --vocabulary 500 "
        "--learning-rate 0.0005 --seeds 0,1 -o smaller"
    )
    assert made == {
        80.0: "",
        79.5: "layerprobe export org/whole smaller-int8 --layer 4 --int8 onnx",
        78.0: "",
        79.0: by_shrink,
        79.9: by_shrink,
    }


def test_it_is_read_back_and_left_out_where_there_is_none(result: Shrunk) -> None:
    assert from_json(Shrunk, result.to_json()) == result
    assert '"sizes"' not in dataclasses.replace(result, sizes=()).to_json()


def test_what_is_measured_is_the_score_of_the_model(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = toy_task_of("sts"), resolve(folder)

    def no_graph(*_: Any) -> None:
        raise ModelError("it has no graph")

    monkeypatch.setattr(points_lost, "int8_graph", no_graph)
    compared = Compared(whole=SharedModel(model), task=task, tuning=None, margin=1.0)
    few = SharedModel(model.of_blocks((1, 4)))
    wide, narrow = sized([few], (1, 4), compared, task.texts("train"), (16, 4), trained=False)
    scored = score(Model(folder, blocks=(1, 4)), task)
    assert wide.score == pytest.approx(scored.scores[-1])
    assert wide.loss.whole == pytest.approx((score(folder, task).scores[-1],))
    assert wide.interval is not None
    assert wide.interval[0] <= wide.score <= wide.interval[1]
    assert (narrow.dimensions, narrow.weights - wide.weights) == (4, 4 * 4 * 16)
    assert wide.weights == 4 * few.encoder.description.parameters[-1]
    assert wide.seeds == 0


def test_a_result_without_sizes_says_how_they_are_made(result: Shrunk) -> None:
    with pytest.raises(DataError, match=r"got none: shrink on a task, with ShrinkSettings\(front=True\)"):
        dataclasses.replace(result, sizes=()).by_size  # noqa: B018


def test_some_sizes_are_at_equal_distances() -> None:
    assert _some([1, 2], 6) == [1, 2]
    assert _some([*range(1, 13)], 6) == [1, 3, 5, 8, 10, 12]


@pytest.mark.slow
def test_eight_bits_are_smaller_and_lose_little(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    task, model = toy_task_of("sts"), resolve(folder)
    compared = Compared(whole=SharedModel(model), task=task, tuning=None, margin=1.0)
    whole, rounded = sized([compared.whole], ALL, compared, task.texts("train"), (16,), trained=False)
    assert (whole.bits, rounded.bits) == (32, 8)
    assert rounded.score == pytest.approx(whole.score, abs=5)
    assert rounded.loss != whole.loss
