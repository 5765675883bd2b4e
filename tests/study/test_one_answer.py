"""One function predicts: the command line and the README's snippet take it from there."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import to_json
from layerprobe.results import words
from tests.cli.conftest import Layerprobe, Pair, layerprobe, pair, pairs_file
from tests.models import given

__all__ = ["layerprobe", "pair", "pairs_file"]

README = Path(__file__).parents[2] / "README.md"
ASKED = ('lp.embedded_model("rtd"), lp.embedded_model("mlm")', "lp.embedded_task(train=300, validation=100, test=300)")


def snippet(model: Path, reference: Path, pairs: Path) -> str:
    """The README's Python example, with these models and data."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    given = f"{str(model)!r}, {str(reference)!r}", f"lp.load_task({str(pairs)!r})"
    for asked, instead in zip(ASKED, given, strict=True):
        assert asked in code, f"expected {asked} in the example of the README"
        code = code.replace(asked, instead)
    return code


def test_the_snippet_of_the_readme_gives_what_the_command_line_gives(
    layerprobe: Layerprobe,
    pair: Pair,
    pairs_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "another"))
    monkeypatch.chdir(tmp_path)  # it writes a page
    said: dict[str, Any] = {}
    exec(snippet(*pair, pairs_file), said)
    prediction, output = said["prediction"], capsys.readouterr().out
    command = layerprobe("predict", pair[0], "-r", pair[1], "-t", pairs_file, "--json").json
    assert command["drops"] == [json.loads(to_json(prediction.drop))]
    assert output.startswith(words.headline(prediction.conclusion))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one string", "got the single text 'one string': put it into a list"),
        (pd.DataFrame({"title": ["a b"], "body": ["c d"]}), "got a table with columns title, body: pass one"),
        (pd.DataFrame({"text": ["a b", None]}), "expected texts, got (None|nan) as number 1"),
        (5, "expected a list of texts, got 5"),
        (["a", ""], "got an empty one as number 1: remove it"),
        ([], "expected texts to embed, got none"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(pair: Pair, tmp_path: Path, texts: Any, message: str) -> None:
    for function in (lp.extract, lp.predict):
        with pytest.raises(DataError, match=message):
            function(lp.Model(pair[0], cache_dir=tmp_path), texts)


def test_texts_are_those_of_a_task_or_of_the_only_column_of_a_table(pair: Pair, tmp_path: Path) -> None:
    task, options = lp.embedded_task(train=8, validation=8, test=8), Model(cache_dir=tmp_path)
    texts = list(task.texts())
    expected = lp.extract(given(pair[0], options), texts).fingerprint
    arrow = pa.table({"text": texts})
    tables: list[Any] = [task, pd.DataFrame({"text": texts}), pd.Series(texts), {"text": texts}]
    tables += [arrow, arrow["text"], datasets.Dataset(arrow)]
    assert [lp.extract(given(pair[0], options), table).fingerprint for table in tables] == [expected] * 7
    several = [lp.predict(given(pair[0], options), table) for table in (texts, *tables[1:])]
    assert all(to_json(prediction) == to_json(several[0]) for prediction in several)
