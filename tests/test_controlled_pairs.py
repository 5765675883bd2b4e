"""The script of the controlled pairs, tried on the CPU: both ways to go on begin with the same weights."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def controlled_pairs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import controlled_pairs

    disabled = logging.root.manager.disable
    yield controlled_pairs
    logging.disable(disabled)  # a part does so, for its process


@pytest.mark.slow
def test_every_part_runs_without_a_gpu(
    controlled_pairs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert controlled_pairs.main(["--device", "cpu", "--tiny", "--jobs", "1", "--out", str(tmp_path)]) == 0
    figures = json.loads((tmp_path / "pairs.json").read_text())
    arms = {"as is", "rtd 2 seed 0", "mlm 2 seed 0"}
    assert {row["arm"] for row in figures["continued"]} == arms - {"as is"}
    assert {row["arm"] for row in figures["read"]} == arms
    assert sorted((row["arm"], row["layer"]) for row in figures["tuned"]) == sorted(
        (arm, layer) for arm in arms for layer in range(4)
    )
    outputs = json.loads((tmp_path / "outputs.json").read_text())
    assert {arm: sorted(layers) for arm, layers in outputs.items()} == {arm: ["0", "1", "2", "3"] for arm in arms}
    capsys.readouterr()
    assert controlled_pairs.main(["--table", str(tmp_path / "pairs.json")]) == 0
    assert "rtd 2 seed 0: TMFT 0:" in capsys.readouterr().out


def test_the_lab_trains_the_very_weights_that_were_given(controlled_pairs: ModuleType, tmp_path: Path) -> None:
    setting = controlled_pairs.Setting(
        model=controlled_pairs.save_tiny("bert", tmp_path / "tiny"),
        stsb=None,
        texts=None,
        folder=tmp_path,
        device="cpu",
        dtype="float32",
        watch=(),
        epochs=1,
        batch=8,
        rate=1e-12,
        views=32,
    )
    arms = [controlled_pairs.Arm(objective=objective, steps=1) for objective in ("rtd", "mlm")]
    for arm in arms:
        row = controlled_pairs.continued(setting, arm)
        assert row["texts"] > 100
        weights = controlled_pairs.encoder_of(arm.path(setting), "cpu", "float32").model.state_dict()
        first = controlled_pairs.encoder_of(setting.model, "cpu", "float32").model.state_dict()
        assert max(float((weights[name] - first[name]).abs().max()) for name in first) < 1e-6
