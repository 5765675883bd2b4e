"""Whatever bytes a reader gets, it returns a value or raises one of our errors.

First any bytes at all, then files that are nearly right: documents with a part replaced, left out or put in, and tables
of odd cells.
"""

import contextlib
import copy
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from layerprobe.errors import LayerProbeError
from layerprobe.files.atomic import write_kept
from layerprobe.finetuning.runs import MODEL, STARTED_FROM, RunOrigin, load_finished, load_saved_run, run_directory
from layerprobe.kinds.retrieval_loading import load_retrieval
from layerprobe.kinds.sentences import load_word_similarity
from layerprobe.lab.dropbench.zoo import SHIPPED, read_zoo
from layerprobe.lab.recipe import load_recipe
from layerprobe.results.shown import load
from layerprobe.store.store import Store
from layerprobe.tasks.formats import SUFFIXES
from layerprobe.tasks.loading import load_corpus, load_task, load_texts
from tests.lab.recipes import STUDY
from tests.report.conftest import FINDINGS, model
from tests.store.conftest import fill, key_of
from tests.test_values import RUN

FEW = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
Reader = Callable[[Path], object]


def survives(read: Reader, path: Path) -> None:
    """Read, and let only our errors pass."""
    with contextlib.suppress(LayerProbeError):
        read(path)


TABLES: dict[str, Reader] = {
    "task": load_task,
    "texts": load_texts,
    "chosen texts": lambda path: load_texts(path, columns="0", groups="1"),
    "corpus": lambda path: load_corpus([path]),
    "words": load_word_similarity,
    "pairs": load_retrieval,
}
NAMES = ["sentence1", "sentence2", "text", "score", "label", "query", "document"]
ODD = [
    "a",
    "a b",
    "0",
    "1",
    "2.5",
    "-1e999",
    "nan",
    "",
    " ",
    '"',
    "\0",
    "\r",
    "\u2028",
    "=1+1",
    "\ud800",
    "1_0",
    "9" * 400,
]
CELLS = st.text(max_size=4) | st.sampled_from(NAMES) | st.sampled_from(ODD)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | CELLS


@FEW
@given(data=st.binary(max_size=200), suffix=st.sampled_from([*SUFFIXES, ".txt.gz"]), packed=st.booleans())
@pytest.mark.parametrize("read", TABLES.values(), ids=TABLES)
def test_any_bytes_as_a_table(tmp_path: Path, read: Reader, data: bytes, suffix: str, packed: bool) -> None:
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(data) if packed and suffix == ".txt.gz" else data)
    survives(read, tmp_path / f"a{suffix}")


@FEW
@given(
    rows=st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=12),
    mark=st.sampled_from(",;\t|"),
    suffix=st.sampled_from([".csv", ".tsv"]),
    encoding=st.sampled_from(["utf-8", "utf-16", "cp1252"]),
)
@pytest.mark.parametrize("read", TABLES.values(), ids=TABLES)
def test_odd_cells(tmp_path: Path, read: Reader, rows: list[list[str]], mark: str, suffix: str, encoding: str) -> None:
    path, text = tmp_path / f"a{suffix}", "\n".join(mark.join(row) for row in rows)
    path.write_bytes(text.encode(encoding, "replace" if encoding == "cp1252" else "surrogatepass"))
    survives(read, path)


@FEW
@given(rows=st.lists(st.dictionaries(CELLS, VALUES | st.lists(VALUES, max_size=2), max_size=4), max_size=9))
@pytest.mark.parametrize("read", TABLES.values(), ids=TABLES)
def test_odd_objects(tmp_path: Path, read: Reader, rows: list[dict[str, Any]]) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    survives(read, tmp_path / "a.jsonl")


@FEW
@given(data=st.data())
def test_changed_parquet(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    table = {"text": ["a", None, "c"] * 9, "label": [1, 2, None] * 9, "more": [[1], [], None] * 9}
    parquet.write_table(pyarrow.table(table), buffer)
    changed = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "a.parquet").write_bytes(changed)
    survives(load_texts, tmp_path / "a.parquet")


CHAIN = """
seeds = 2
layers = [0, 3]
[[models]]
id = "org/model"
[[step]]
adapt = ["texts.txt"]
max_steps = 3
[[tasks]]
source = "stsb"
score_range = [0, 5]
[options]
pooling = "cls"
"""
ODD_LITERALS = """1|-1|0|true|nan|inf|1e400|0xff|"a"|[]|~|{}|{ a = 1 }|[1, 'a']|1979-05-27|"all"|[""]|[1e400]"""
LITERALS = st.sampled_from(["", "9" * 5000, "[" * 20 + "]" * 20, *ODD_LITERALS.split("|")])


@FEW
@given(data=st.binary(max_size=200))
def test_any_bytes_as_settings(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(data)
    survives(load_recipe, tmp_path / "a.toml")


@settings(FEW, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("text", [CHAIN, STUDY], ids=["chain", "study"])
def test_changed_settings(tmp_path: Path, text: str, data: st.DataObject) -> None:
    lines = text.strip().split("\n")
    for _ in range(data.draw(st.integers(1, 2))):
        number = data.draw(st.integers(0, len(lines) - 1))
        key = lines[number].split(" =")[0]
        changed = [f"{key} = {data.draw(LITERALS)}", "", lines[data.draw(st.integers(0, len(lines) - 1))]]
        lines[number] = data.draw(st.sampled_from(changed))
    (tmp_path / "a.toml").write_text("\n".join(lines))
    survives(load_recipe, tmp_path / "a.toml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "a", "\ud800", "../../x", 10**400]),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3),
    max_leaves=4,
)


def changed_document(document: Any, data: st.DataObject) -> Any:
    """Return a document in which one part is something else, is missing, or is there once more."""
    whole = {"": copy.deepcopy(document)}
    place: Any = whole
    key: Any = ""
    while isinstance(place[key], (dict, list)) and place[key] and data.draw(st.integers(0, 9)):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    how = data.draw(st.sampled_from(["replace", "replace", "delete", "add", "scale"]))
    if how == "delete" and place is not whole:
        del place[key]
    elif how == "add":
        place[key] = [place[key], data.draw(JSON)]
    elif how == "scale" and type(place[key]) in (int, float):
        place[key] *= data.draw(st.sampled_from([-1, 0, 10**9]))
    else:
        place[key] = data.draw(JSON)
    return whole.get("")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an entry, a run with weights, a finding and a zoo."""
    root = tmp_path_factory.mktemp("kept")
    store = Store(root, rows_per_shard=2)
    fill(store, ["a", "b", "c"])
    run = run_directory(root / "runs" / ("a" * 32), RUN.layer, RUN.seed)
    (run / MODEL).mkdir(parents=True)
    write_kept(run / "result.json", {"runs": [RUN]}, root=root)
    origin = RunOrigin(model=model("m", 3), task="a", task_digest="b", pairs=(4, 4, 4), prompt="")
    write_kept(run / MODEL / STARTED_FROM, origin, root=root)
    write_kept(root / "finding.json", FINDINGS["found"](), root=root)
    (root / "zoo.json").write_bytes((SHIPPED / "dropbench-captions.json").read_bytes())
    return root


def read_store(path: Path) -> None:
    root = path.parents[2]
    store = Store(root)
    store.entries()
    with contextlib.suppress(LayerProbeError):
        if (entry := store.open(key_of(["a", "b", "c"]))) is not None:
            entry.layer(1).sum()


def read_run(path: Path) -> None:
    load_finished(run_directory(path.parents[1], RUN.layer, RUN.seed))
    load_saved_run(path.parent)


KEPT: dict[str, tuple[str, Reader]] = {
    "manifest": ("embeddings/*/manifest.json", read_store),
    "samples": ("embeddings/*/samples.json", read_store),
    "run": ("runs/*/*/result.json", read_run),
    "origin of weights": (f"runs/*/*/{MODEL}/{STARTED_FROM}", lambda path: read_run(path.parent)),
    "finding": ("finding.json", load),
    "zoo": ("zoo.json", read_zoo),
}


@pytest.mark.filterwarnings("ignore")
@FEW
@given(data=st.data())
@pytest.mark.parametrize(("name", "read"), KEPT.values(), ids=KEPT)
def test_changed_results(kept: Path, name: str, read: Reader, data: st.DataObject) -> None:
    (path,) = kept.glob(name)
    before = path.read_bytes()
    try:
        if data.draw(st.booleans()):
            path.write_text(json.dumps(changed_document(json.loads(before), data)))
        else:
            path.write_bytes(data.draw(st.binary(max_size=99)))
        survives(read, path)
    finally:
        path.write_bytes(before)
