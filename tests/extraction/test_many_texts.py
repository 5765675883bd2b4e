"""Texts that are too many for memory are extracted as a list of them is; float16; what is said before."""

import dataclasses
import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from layerprobe.comparison.compare import compare
from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files import inputs
from layerprobe.files.inputs import SpooledTexts
from layerprobe.results.shown import Estimate
from layerprobe.store import store as module
from layerprobe.store.manifest import texts_digest
from layerprobe.store.store import Store
from layerprobe.tasks.loading import load_texts
from layerprobe.tasks.quality import distinct_texts
from tests.models import given, save_tiny, tiny_model, tiny_tokenizer

LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder."""
    return save_tiny("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def options(tmp_path: Path) -> Model:
    """With a store of its own."""
    return Model(cache_dir=tmp_path / "cache", device="cpu")


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is one too many for memory, and shards are small."""
    monkeypatch.setattr(inputs, "IN_MEMORY", 0)
    monkeypatch.setattr(module, "MIN_SHARD_ROWS", 16)
    monkeypatch.setattr(module, "MAX_SHARD_ROWS", 16)


def words(n: int) -> list[str]:
    """Return n distinct texts of letters."""
    return [" ".join(letters) for letters in itertools.islice(itertools.product(LETTERS, repeat=4), n)]


@pytest.mark.usefixtures("crowded")
def test_a_file_of_many_texts_is_extracted_as_their_list(tmp_path: Path, model: Path, options: Model) -> None:
    texts = words(50)
    path = tmp_path / "texts.txt"
    path.write_bytes("\r\n".join([*texts, texts[3], texts[0]]).encode())  # copies, and no line end at the end
    read = load_texts(path)
    assert isinstance(read.texts, SpooledTexts)
    assert read.texts == [*texts, texts[3], texts[0]]
    many = extract(given(model, options), read.texts)
    assert isinstance(many.texts, SpooledTexts)
    assert many.texts == [*texts, texts[3], texts[0]]
    assert many.distinct == texts
    assert many.stored.manifest.n_shards == 4
    assert extract(given(model, options), read).distinct == texts
    few = extract(given(model, options), [*texts, texts[3]])
    assert few.fingerprint == many.fingerprint
    assert few.distinct == tuple(texts)
    apart = extract(given(model, Model(cache_dir=tmp_path / "other", device="cpu")), texts)
    for layer in range(many.n_layers):
        np.testing.assert_array_equal(many.layer(layer), apart.layer(layer)[[*range(50), 3, 0]])
    rows = [7, 0, 49, 7]
    assert many.rows([texts[row] for row in rows]).tolist() == few.rows([texts[row] for row in rows]).tolist() == rows
    with pytest.raises(MisalignedSamplesError, match="the text 'h h' is not among the 50 embedded ones: extract it"):
        many.rows(["h h"])


def test_texts_of_one_id_are_told_apart(monkeypatch: pytest.MonkeyPatch, model: Path, options: Model) -> None:
    texts = words(9)
    for name in ("extraction.embeddings", "tasks.quality", "store.store"):
        monkeypatch.setattr(f"layerprobe.{name}.sample_ids", lambda texts: np.zeros(len(texts), dtype=np.uint64))
    assert distinct_texts([*texts, *texts]) == tuple(texts)
    assert extract(given(model, options), texts).rows(texts[::-1]).tolist() == list(range(9))[::-1]


@pytest.mark.usefixtures("crowded")
def test_an_empty_text_among_many_is_refused() -> None:
    with pytest.raises(DataError, match="expected texts with words in them, got an empty one as number"):
        distinct_texts(inputs.spooled(["a", "", "b"]))


@pytest.mark.usefixtures("crowded")
def test_what_memory_holds_for_a_text_is_a_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path, options: Model
) -> None:
    for name in ("MIN_SHARD_ROWS", "MAX_SHARD_ROWS"):
        monkeypatch.setattr(module, name, 256)

    def peak(n: int) -> int:
        path = tmp_path / f"{n}.txt"
        path.write_text("".join(f"{text} of many texts {i}\n" for i, text in enumerate(words(n))))
        tracemalloc.start()
        extracted = extract(given(model, options), load_texts(path).texts)
        assert len(extracted.texts) == n
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(64)  # what is imported and kept on first use
    # a text has 40 characters here: its str alone is 90 bytes, its token ids as lists some 400
    assert (peak(2560) - peak(512)) / 2048 < 150


@pytest.mark.usefixtures("crowded")
def test_an_interrupted_extraction_goes_on_with_the_shards_that_are_missing(
    tmp_path: Path, model: Path, options: Model
) -> None:
    texts = inputs.spooled([*words(70), "a b c d e f g h"])
    short = dataclasses.replace(options, max_length=6)

    def interrupt(task: str, done: float, total: float) -> None:
        if done > total / 2 and task != "checking layers":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), settings(progress=interrupt):
        extract(given(model, short), texts)
    (entry,) = Store(options.cache_dir).entries()
    assert entry.state == "partial"
    assert entry.manifest is not None
    before = entry.manifest.shards
    assert 1 <= len(before) < 5
    resumed = extract(given(model, short), texts)
    assert resumed.stored.manifest.shards[: len(before)] == before
    whole = extract(given(model, dataclasses.replace(short, cache_dir=tmp_path / "other")), list(texts))
    for layer in range(whole.n_layers):
        np.testing.assert_array_equal(resumed.layer(layer), whole.layer(layer))
    assert resumed.warnings == whole.warnings == (f"1 of 71 texts were cut at 6 tokens for {model}",)


def test_what_an_extraction_takes_is_said_before_it_begins(model: Path, options: Model) -> None:
    said: list[Estimate] = []

    def stop(plan: Estimate) -> None:
        said.append(plan)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(given(model, options), words(30), on_plan=stop)
    assert not list(Path(options.cache_dir or "").glob("embeddings/*"))
    extracted = extract(given(model, options), words(30), on_plan=said.append)
    extract(given(model, options), words(30), on_plan=said.append)
    assert len(said) == 2
    files = extracted.stored.directory.glob("s*")
    assert said[0]["bytes"] == said[1]["bytes"] == pytest.approx(sum(path.stat().st_size for path in files), rel=0.2)
    assert said[0].sentence.startswith(f"Embedding 30 texts with {model.name}, 4 layers of ")


def test_float16_is_another_entry_with_nearly_the_same_numbers(model: Path, tmp_path: Path) -> None:
    def embedded(dtype: str) -> Embeddings:
        return extract(given(model, Model(cache_dir=tmp_path, device="cpu", store_dtype=dtype)), words(60))

    full, half = embedded("float32"), embedded("float16")
    assert full.fingerprint != half.fingerprint
    assert half.stored.manifest.key.texts_digest == full.stored.manifest.key.texts_digest == texts_digest(words(60))
    assert half.settings == {"store_dtype": "float16"}
    for layer in range(full.n_layers):
        assert half.layer(layer).dtype == np.float32
        np.testing.assert_array_equal(half.layer(layer), full.layer(layer).astype(np.float16))
    own, other = (compare(each, full, alignment="previous-layer").curve.values for each in (full, half))
    np.testing.assert_allclose(other, own, atol=1e-3)
    diagnosed = compare(half, full).model_diagnostics
    assert {layer.dtype for layer in diagnosed} == {"float16"}


def test_a_layer_that_is_constant_up_to_rounding_is_left_out_in_float16(model: Path, tmp_path: Path) -> None:
    options = Model(cache_dir=tmp_path, device="cpu", store_dtype="float16", pooling="cls")
    assert extract(given(model, options), words(20)).first_layer == 1


def test_a_layer_beyond_float16_is_named(tmp_path: Path) -> None:
    large = tiny_model("bert")
    large.encoder.layer[1].output.LayerNorm.weight.data *= 1e6
    options = Model(cache_dir=tmp_path, device="cpu", store_dtype="float16")
    with pytest.raises(DataError, match=r"layer 2 has a value of [\d,]+, above float16's limit of 65,504: store"):
        extract(given((large, tiny_tokenizer()), options), words(20))


def test_another_dtype_of_the_store_is_refused() -> None:
    with pytest.raises(DataError, match="expected embeddings in float32 or float16, got 'int8'"):
        Model(store_dtype="int8")  # type: ignore[arg-type]
