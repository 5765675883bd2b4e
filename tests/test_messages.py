"""Messages are one line, whatever is in the files and the paths that they quote."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import layerprobe as lp
from layerprobe.errors import LONGEST, LayerProbeError, to_message
from layerprobe.files.serialisation import from_dict
from layerprobe.finetuning.values import Protocol

X, TARGETS = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32), np.arange(20.0)


@pytest.mark.parametrize("key", ["k\x1b[31m\u202e\n" + "x" * 1_700_000, "a\x1b[2J b " * 150_000])
def test_keys_and_names_of_files_are_escaped_and_shortened(key: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({key: 1}))
    save_file({key: X[:, 0], "b": X[:5, 0]}, tmp_path / "a.safetensors")
    save_file({key: TARGETS, "b": TARGETS}, tmp_path / "t.safetensors")
    (tmp_path / "a.csv").write_text(f'"{key}",b,c,d,e\n' + "1,2,3,4,5\n" * 20)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: lp.load(tmp_path / "a.json"), "expected a result as JSON, such as lp.save writes, got "),
        (lambda: lp.probe(tmp_path / "a.safetensors", TARGETS), "rows, expected the "),
        (lambda: lp.probe(X, tmp_path / "t.safetensors"), "expected a column of targets"),
        (lambda: lp.load_task(tmp_path / "a.csv"), "cannot tell which columns are "),
        (lambda: from_dict(Protocol, {key: 3}), "unknown key "),
        (lambda: from_dict(dict[str, int], {key: "x"}), "to be a whole number, got"),
    ]
    for call, line in calls:
        with pytest.raises(LayerProbeError, match=line) as caught:
            call()
        message = str(caught.value)
        assert len(message) <= LONGEST
        assert message.replace("\\x1b", "").isprintable()


def test_a_message_is_the_same_when_it_is_quoted_again() -> None:
    message = to_message("a\nb \x1b[31m" + "long " * 2000 + "x" * 5000 + ": do this")
    assert to_message(message) == message
    assert message.startswith("a b \\x1b[31mlong")
    assert message.endswith("x: do this")


@pytest.mark.parametrize("path", ["a" * 300, "a" * 300 + ".csv", "a\0b.csv"])
def test_a_path_that_no_system_takes_is_one_line(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("".join(f"a {i},b {i},{i % 5}\n" for i in range(40)))
    model = str(lp.embedded_model("rtd"))
    calls: list[Callable[[], object]] = [
        lambda: lp.load(path),
        lambda: lp.load_task(path),
        lambda: lp.load_task("p.csv", validation=path),
        lambda: lp.load_texts(path),
        lambda: lp.probe(path, TARGETS),
        lambda: lp.probe(X, path),
        lambda: lp.probe(X, TARGETS, groups=path),
        lambda: lp.probe(X, TARGETS, groups=f"{path}:c"),
        lambda: lp.compare(path, X),
        lambda: lp.predict(path, ["a b"]),
        lambda: lp.export_model(model, path, layer=1),
        lambda: lp.LayerSearch(path, n_blocks=3),
        lambda: lp.cache(path).entries(),
        lambda: lp.save(lp.probe(X, TARGETS), path),
    ]
    for call in calls:
        with pytest.raises(LayerProbeError, match=r"^[ -~]+$"):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["p.csv"]
