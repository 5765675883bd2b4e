"""layerprobe score with several models: which layer of which model."""

from pathlib import Path

import pytest

from layerprobe.profiling.values import ProfileSettings

from .conftest import Layerprobe, Pair


@pytest.fixture
def both(pair: Pair, pairs_file: Path) -> tuple[str | Path, ...]:
    return ("score", *pair, "-t", pairs_file)


def test_models_are_compared_layer_by_layer(
    layerprobe: Layerprobe, both: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "layerprobe.profiling.run.ALONE", ProfileSettings(lengths=(8,), batch_sizes=(1,), rounds=2, repeats=1)
    )
    page = tmp_path / "models.html"
    done = layerprobe(*both, "--report", page)
    assert done.code == 0, done.err
    lines = done.table
    assert lines[0].split()[:6] == ["model", "layer", "Spearman", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[1:9]] == ["electra"] * 4 + ["bert"] * 4
    wide = layerprobe(*both, "--wide").table[0]
    assert all(name in wide for name in (" ms ", "parameters", "at most behind"))
    assert done.commands[0][0] == "find"
    assert page.is_file()


def test_each_model_is_scored_as_alone_and_time_can_be_left_out(
    layerprobe: Layerprobe, both: tuple[str | Path, ...], pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    found = layerprobe(*both, "--no-time", "--json", "--level", "0.9", "--split", "all").json
    assert not any("milliseconds" in each for each in found["layers"])
    assert found["level"] == 0.9
    assert {(each["scores"]["split"], each["n_items"]) for each in found["tasks"]} == {("all", 60)}
    for i, model in enumerate(pair):
        alone = layerprobe("score", model, "-t", pairs_file, "--json").json["scores"]["metrics"]["spearman"]
        own = [each["score"] for each in found["layers"] if each["model"] == i]
        assert own == pytest.approx(alone)
    for split, where in ((), ""), (("--split", "test"), " on test"):
        assert f"Spearman x 100{where}, 95 %" in layerprobe("score", pair[0], "-t", pairs_file, *split).out
    assert " ms " not in layerprobe(*both, "--no-time", "--wide").out
