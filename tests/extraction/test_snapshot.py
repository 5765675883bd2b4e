import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.snapshot import ERROR, N_DIRECTIONS, Snapshot, _sketch
from layerprobe.results.conclusion import Verdict
from layerprobe.versions import FORMAT_VERSION
from tests.models import save_tiny
from tests.results.contract import assert_keeps_contract

ARCHIVE = Path(__file__).parent / "rtd-0.4.0.json"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the file of its snapshot."""
    folder = tmp_path_factory.mktemp("before")
    save_tiny("bert", folder / "model")
    return folder / "model", lp.save(lp.snapshot(str(folder / "model")), folder / "before.json")


def changed(before: tuple[Path, Path], change: Callable[[Path], object], folder: Path, **options: Any) -> Snapshot:
    """Return the comparison of a changed model with the file."""
    save_tiny("bert", folder / "model")
    change(folder / "model")
    return lp.snapshot(Model(str(folder / "model"), cache_dir=folder / "cache", **options), before[1])


def weight(name: str, by: float = 0.5) -> Callable[[Path], object]:
    """Return the change of one number of a weight."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights[name].view(-1)[0] += by
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def tokenizer(change: Callable[[Any], object]) -> Callable[[Path], object]:
    """Return a change of tokenizer.json."""

    def changed(folder: Path) -> None:
        rules = json.loads((folder / "tokenizer.json").read_text())
        change(rules)
        (folder / "tokenizer.json").write_text(json.dumps(rules))

    return changed


def swap(rules: Any) -> None:
    """Swap the ids of two tokens."""
    vocabulary = rules["model"]["vocab"]
    vocabulary["##q"], vocabulary["##z"] = vocabulary["##z"], vocabulary["##q"]


BLOCK = "encoder.layer.{}.output.{}.weight"
CHANGES: dict[str, tuple[Callable[[Path], object], dict[str, Any], str, tuple[int, ...]]] = {
    "nothing": (lambda _: None, {}, "same", ()),
    "batches": (lambda _: None, {"batch_tokens": 1}, "same", ()),
    "bfloat16": (lambda _: None, {"dtype": "bfloat16"}, "same", ()),
    "a weight by less than rounding": (weight(BLOCK.format(0, "dense"), 1e-6), {}, "same", ()),
    "embeddings": (weight("embeddings.LayerNorm.weight"), {}, "moved", (0, 1, 3)),
    "block 1": (weight(BLOCK.format(0, "dense")), {}, "moved", (1, 3)),
    "last norm": (weight(BLOCK.format(2, "LayerNorm")), {}, "moved", (3,)),
    "last norm, seen in bfloat16": (weight(BLOCK.format(2, "LayerNorm")), {"dtype": "bfloat16"}, "moved", (3,)),
    "pooling": (lambda _: None, {"pooling": "cls"}, "moved", (0, 1, 3)),
    "one token": (tokenizer(swap), {}, "tokens", ()),
    "normaliser": (tokenizer(lambda rules: rules.update(normalizer=None)), {}, "tokens", ()),
    "length": (lambda _: None, {"max_length": 63}, "tokens", ()),
    "prompt": (lambda _: None, {"prompt": "a "}, "tokens", (0, 1, 3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_has_changed_first_is_said(name: str, before: tuple[Path, Path], tmp_path: Path) -> None:
    change, options, case, moved = CHANGES[name]
    now = changed(before, change, tmp_path, **options)
    conclusion = now.conclusion
    assert (conclusion.case, conclusion.names["moved"]) == (case, moved)
    assert now.verdict == (Verdict.DECIDED if case == "same" else Verdict.FAILED)
    assert_keeps_contract(now, long_names=True)
    tables = {table.title: table.data for table in now.details}
    others = set(tables.get("Other differences", {}).get("what", ())) - {"model"}
    assert {*options} - {"batch_tokens"} <= others <= {*options, "revision", "tokenizer"}
    # the tokens themselves, by transformers alone
    limit = options.get("max_length", now.before and int(now.before.sources["max_length"]))
    texts = [options.get("prompt", "") + text for text in now.texts]
    then, ids = (
        AutoTokenizer.from_pretrained(folder)(read, truncation=True, max_length=most)["input_ids"]
        for folder, read, most in ((before[0], now.texts, 64), (tmp_path / "model", texts, limit))
    )
    assert [" ".join(map(str, row)) for row in ids] == list(now.ids)
    rows = [row for row in range(32) if then[row] != ids[row]]
    assert (now.changed, bool(rows)) == (rows, case == "tokens")
    if rows:
        first = tables["Changed tokens"]
        assert first["text"] == tuple(now.texts[row] for row in rows)
        for row, place, was, is_now in zip(rows, first["token"], first["was"], first["now"], strict=True):
            at = int(place) - 1  # type: ignore[call-overload]
            assert then[row][:at] == ids[row][:at]
            assert (f"({then[row][at]})" in str(was), f"({ids[row][at]})" in str(is_now)) == (True, True)


def test_a_file_is_small_and_its_options_are_taken(tmp_path: Path) -> None:
    folder = save_tiny("gpt2", tmp_path / "model")
    how = Model(str(folder), pooling="max", max_length=24, prompt="b ", dtype="bfloat16", norm="raw")
    made = lp.snapshot(how)
    assert_keeps_contract(made, long_names=True)
    page = made.save_html(tmp_path / "made.html", plotly="cdn").read_text("utf-8")
    assert "Saved tokens and embeddings of 32 texts" in page
    file = lp.save(made, tmp_path / "made.json")
    assert file.stat().st_size < 20_000
    again = lp.snapshot(str(folder), file)
    assert (again.conclusion.case, again.details) == ("same", ())
    assert again.embeddings == made.embeddings
    otherwise = lp.snapshot(Model(str(folder), pooling="mean"), lp.load(file))
    assert otherwise.conclusion.names["moved"] == (0, 1, 3)
    assert [*otherwise.details[0].data["what"]] == ["pooling"]


def test_distances_are_estimated_with_the_error_that_is_said() -> None:
    rng, width, n = np.random.default_rng(0), 40, 4000
    shift = rng.normal(size=(n, width))
    shift[::3, 3:] = 0  # a few features alone
    vectors = np.zeros((n, width))
    numbers = [np.array([row.split() for row in _sketch(1, values)], dtype=float) for values in (vectors, shift)]
    moved = np.sqrt(np.mean((numbers[1] - numbers[0])[:, 1:] ** 2, axis=1))
    lengths = np.linalg.norm(shift, axis=1)
    np.testing.assert_allclose(numbers[1][:, 0], lengths, rtol=1e-6)
    assert np.mean(moved**2) == pytest.approx(np.mean(lengths**2), rel=0.03)
    inside = (ERROR[0] * moved <= lengths) & (lengths <= ERROR[1] * moved)
    assert 0.94 <= inside.mean() <= 0.99
    # one feature alone is seen in every projection, and its distance has no error
    one = np.array([row.split() for row in _sketch(1, np.eye(width) / 7)], dtype=float)[:, 1:]
    np.testing.assert_allclose(np.abs(one), np.full((width, N_DIRECTIONS), 1 / 7), rtol=1e-6)
    # the signs never change, or old files could not be compared: `printf 0/7 | openssl dgst -shake256`
    first = ["".join("01"[float(value) > 0] for value in row.split()[1:]) for row in _sketch(0, np.eye(3))]
    assert first == ["10010001", "01110011", "01001110"]


def test_files_that_hold_no_snapshot_are_one_line(before: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = before
    whole, path = file.read_text("utf-8"), tmp_path / "file.json"
    fewer = dataclasses.replace(lp.load(file)).to_json()
    fewer = json.dumps({**json.loads(fewer), "ids": ["1 2"]})
    newer = whole.replace(f'"format": {FORMAT_VERSION}', f'"format": {FORMAT_VERSION + 1}')
    other = '{"values": [1.0, 2.0]}'
    for text, message in (
        (
            whole.replace('"ids": [\n    "', '"ids": [\n    "9'),
            "its checksum does not match its content: it was damaged",
        ),
        (whole[:300], "file.json: "),
        (newer, "a newer layerprobe wrote it"),
        (fewer, "expected tokens and embeddings of 32 texts"),
        ("{}", "expected a result as JSON"),
        (other, "expected a file that check --save wrote, got a LayerCurve in .*file.json"),
    ):
        path.write_text(text, "utf-8")
        with pytest.raises(DataError, match=message):
            lp.snapshot(str(model), path)
    for missing, message in ((tmp_path, "cannot read .*: Is a directory"), (tmp_path / "x.json", "No such file")):
        with pytest.raises(DataError, match=message):
            lp.snapshot(str(model), missing)


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """A file outlives versions of layerprobe and of what it uses, and other processors: it is never written anew."""
    model = Model(str(lp.embedded_model("rtd")), cache_dir=tmp_path, display_name="rtd")
    assert lp.snapshot(model, ARCHIVE).conclusion.case == "same"
