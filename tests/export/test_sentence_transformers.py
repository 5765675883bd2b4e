"""An export of a sentence-transformers model encodes what that does with its blocks cut."""

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.export.run import ExportResult, export_model
from tests.few import few
from tests.models import HIDDEN, N_BLOCKS, TEXTS, save_tiny, tiny_tokenizer
from tests.test_minilm import MODEL

from .judges import layerprobe_embeddings, run_card, sentence_transformer
from .test_runs import tuned

SENTENCES = [*TEXTS, "CAPITALS and Others", "layers of a model " * 12]


def modules() -> Any:
    """The modules of sentence-transformers by name."""
    from sentence_transformers.base import modules as base
    from sentence_transformers.sentence_transformer import modules as own

    return {**vars(own), **vars(base)}


def built(folder: Path, *behind: Any, encoder: str = "bert", length: int | None = None, **said: Any) -> Path:
    """Write a sentence-transformers model of tiny weights, as the installed version does."""
    from sentence_transformers import SentenceTransformer

    kinds = modules()
    source = save_tiny(encoder, folder / "encoder", tokenizer=said.pop("tokenizer", None))
    first = kinds["Transformer"](str(source), do_lower_case=said.pop("lower", False))
    model = SentenceTransformer(modules=[first, *behind], device="cpu", **said)
    if length is not None:
        model.max_seq_length = length
    model.save(str(folder / "model"), create_model_card=False)
    return folder / "model"


def mean(pooling: Any = "mean", **said: Any) -> Any:
    return modules()["Pooling"](HIDDEN, pooling_mode=pooling, **said)


def dense(width: int = 5, **said: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return modules()["Dense"](HIDDEN, width, **said)


def cut(folder: Path, layer: int, *, without: tuple[str, ...] = ()) -> Any:
    """The source with its blocks cut, and without some of its modules."""
    model = sentence_transformer(folder)
    inner = model[0].auto_model
    blocks = getattr(inner, "encoder", inner)
    name = "layer" if hasattr(blocks, "layer") else "layers"
    setattr(blocks, name, getattr(blocks, name)[:layer])
    for i in reversed(range(len(model))):
        if type(model[i]).__name__ in without:
            del model[i]
    return model


def check(folder: Path, out: Path, layer: int, *, without: tuple[str, ...] = (), **options: Any) -> ExportResult:
    """Export, and compare what both encode."""
    done = export_model(Model(folder, **options), out, layer=layer)
    assert done.compared_with == "source"
    source, written = cut(folder, layer, without=without), sentence_transformer(out)
    assert (written.prompts, written.default_prompt_name) == (source.prompts, source.default_prompt_name)
    assert (written.max_seq_length, written.similarity_fn_name) == (source.max_seq_length, source.similarity_fn_name)
    assert [type(each) for each in written] == [type(each) for each in source]
    for name in (None, *source.prompts):
        expected, found = (model.encode(SENTENCES, prompt_name=name) for model in (source, written))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    text = (out / "README.md").read_text()
    assert f"compared by {source.similarity_fn_name}" in text
    assert f"cut at {source.max_seq_length} tokens" in text
    for texts, embeddings in run_card(out):
        np.testing.assert_allclose(embeddings, source.encode(texts), rtol=0, atol=1e-6)
    return done


LAYOUTS: dict[str, Any] = {
    "mean": lambda path: built(path, mean()),
    "cls": lambda path: built(path, mean("cls")),
    "max, normalised, short": lambda path: built(path, mean("max"), modules()["Normalize"](), length=12),
    "last": lambda path: built(path, mean("lasttoken"), encoder="llama", length=90),
    "last, padded on the left": lambda path: built(
        path, mean("lasttoken"), encoder="llama", tokenizer=tiny_tokenizer(padding_side="left")
    ),
    "weighted": lambda path: built(path, mean("weightedmean")),
    "root": lambda path: built(path, mean("mean_sqrt_len_tokens")),
    "two poolings": lambda path: built(path, mean(("mean", "cls")), modules()["Normalize"]()),
    "prompts": lambda path: built(
        path, mean(), prompts={"query": "a b ", "document": "c ", "other": "d e "}, default_prompt_name="other"
    ),
    "prompts that are not pooled": lambda path: built(
        path, mean(include_prompt=False), prompts={"query": "a b "}, default_prompt_name="query"
    ),
    "dot product": lambda path: built(path, mean(), modules()["Dropout"](0.3), similarity_fn_name="dot"),
}


HEADS: dict[str, Any] = {
    "Dense": lambda path: built(path, mean(), dense(), modules()["Normalize"]()),
    "Dense without activation": lambda path: built(path, mean(), dense(activation_function=torch.nn.Identity())),
    "LayerNorm": lambda path: built(path, mean(), modules()["LayerNorm"](HIDDEN)),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a model by its name, written once: read it, do not change it."""
    return functools.cache(lambda name: (LAYOUTS | HEADS)[name](tmp_path_factory.mktemp("source")))


@pytest.mark.parametrize("layer", few([1, N_BLOCKS], lambda layer: layer == 1))
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_an_export_encodes_what_its_source_does(
    name: str, layer: int, source: Callable[[str], Path], tmp_path: Path
) -> None:
    check(source(name), tmp_path / "out", layer)


@pytest.mark.parametrize("name", list(HEADS))
def test_a_head_of_the_last_layer_is_kept_there_and_left_out_before(
    name: str, source: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, kind = source(name), name.partition(" ")[0]
    assert kind in check(folder, tmp_path / "whole", N_BLOCKS).modules
    done = check(folder, tmp_path / "out", 2, without=(kind,))
    assert kind not in done.modules
    assert any(f"without its {kind}, which was trained on the last layer" in warning for warning in done.warnings)


def test_lower_case_is_read_by_everything(tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    folder = built(tmp_path, mean(), tokenizer=tokenizer)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 30, "do_lower_case": true}')
    done = check(folder, tmp_path / "out", 2)
    assert done.max_length == 30
    written = sentence_transformer(tmp_path / "out")
    np.testing.assert_array_equal(written.encode(["LAYERS"]), written.encode(["layers"]))
    encoder = load_encoder(resolve(str(folder)), device="cpu")
    upper, lower = (encoder.tokenize([text]) for text in ("LAYERS", "layers"))
    assert np.array_equal(upper.ids, lower.ids)  # type: ignore[union-attr]
    # an export of the export is the same once more
    check(tmp_path / "out", tmp_path / "again", 1)


def old_layout(folder: Path) -> Path:
    """Write a model as the first versions of sentence-transformers did: the encoder below, no settings."""
    save_tiny("bert", folder / "0_Transformer")
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN, **modes}))
    names = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    return folder


def test_an_encoder_in_a_folder_of_its_own(tmp_path: Path) -> None:
    done = check(old_layout(tmp_path / "model"), tmp_path / "out", 2)
    assert (done.max_length, done.modules) == (20, ("Pooling", "Normalize"))


@pytest.mark.slow  # of a real model; the lines are those of the layouts above
@pytest.mark.parametrize("layer", [3, 6])
def test_minilm(layer: int, tmp_path: Path) -> None:
    done = check(MODEL, tmp_path / "out", layer)
    assert (done.max_length, done.difference <= 1e-6) == (256, True)
    norms = np.linalg.norm(sentence_transformer(tmp_path / "out").encode(SENTENCES), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=0, atol=1e-6)


def test_a_model_that_was_given_loaded(source: Callable[[str], Path], tmp_path: Path) -> None:
    folder = source("Dense")
    model = sentence_transformer(folder)
    model.max_seq_length = 9
    done = export_model(model, tmp_path / "out", layer=N_BLOCKS)
    assert (done.compared_with, done.max_length, done.modules) == ("source", 9, ("Pooling", "Dense", "Normalize"))
    written = sentence_transformer(tmp_path / "out")
    np.testing.assert_allclose(written.encode(SENTENCES), model.encode(SENTENCES), rtol=0, atol=1e-6)
    assert len(model[0].auto_model.encoder.layer) == N_BLOCKS


def test_what_is_asked_otherwise_takes_the_place_of_the_source(tmp_path: Path) -> None:
    folder = built(tmp_path, mean(), modules()["Normalize"](), prompts={"q": "a "}, default_prompt_name="q")
    done = export_model(Model(folder, pooling="cls", prompt="b ", max_length=7), tmp_path / "out", layer=2)
    assert (done.pooling, done.prompt, done.max_length, done.compared_with) == ("cls", "b ", 7, "layer")
    written, source = sentence_transformer(tmp_path / "out"), cut(folder, 2)
    source[1].pooling_mode, source.max_seq_length = "cls", 7
    found, expected = written.encode(SENTENCES), source.encode(SENTENCES, prompt="b ")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_modules_that_are_not_kept_are_downloaded_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a model of the Hub, of which only what was asked for is there."""
    there = built(tmp_path, mean(), dense())
    folder = Path(shutil.copytree(there, tmp_path / "here", ignore=shutil.ignore_patterns("2_Dense")))

    def asked(source: str, commit: str | None, file: str) -> Path | None:
        if not (there / file).is_file():
            return None
        (folder / file).parent.mkdir(exist_ok=True)
        return Path(shutil.copyfile(there / file, folder / file))

    monkeypatch.setattr("layerprobe.encoders.identity._beside", asked)
    assert export_model(folder, tmp_path / "out", layer=2).compared_with == "source"


def test_without_sentence_transformers_the_layer_alone_is_compared(
    source: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = source("max, normalised, short")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sentence_transformers", None)
        assert export_model(folder, tmp_path / "out", layer=2).compared_with == "layer"
    expected = cut(folder, 2).encode(SENTENCES)
    np.testing.assert_allclose(sentence_transformer(tmp_path / "out").encode(SENTENCES), expected, rtol=0, atol=1e-6)


def test_an_export_that_encodes_something_else_is_an_error(
    source: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from layerprobe.export import folder as checkpoint

    folder, write = source("Dense"), checkpoint.write_layout

    def without_normalize(folder: Path, layout: Any) -> None:
        write(folder, layout)
        rows = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps(rows[:-1]))

    monkeypatch.setattr(checkpoint, "write_layout", without_normalize)
    with pytest.raises(ModelError, match="has other embeddings than the model cut at that layer"):
        export_model(folder, tmp_path / "out", layer=N_BLOCKS)
    assert not (tmp_path / "out").exists()


# ---- refused ------------------------------------------------------------------------------------------


def test_static_embeddings_have_no_blocks(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    static = modules()["StaticEmbedding"](tiny_tokenizer().backend_tokenizer, embedding_dim=4)
    SentenceTransformer(modules=[static], device="cpu").save(str(tmp_path / "model"), create_model_card=False)
    with pytest.raises(ModelError, match="begins with a StaticEmbedding: expected a Transformer with blocks"):
        export_model(tmp_path / "model", tmp_path / "out", layer=1)


@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (2, {"type": "own_code.Head"}, r"has the modules own_code\.Head, which cannot be exported: expected Tran"),
        (0, {"type": "own_code.Transformer"}, r"has the modules own_code\.Transformer, which cannot be exported"),
    ],
)
def test_modules_that_cannot_be_kept(at: int, change: dict[str, str], words: str, tmp_path: Path) -> None:
    folder = built(tmp_path, mean(), modules()["Normalize"]())
    rows = json.loads((folder / "modules.json").read_text())
    rows[at] |= change
    (folder / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(ModelError, match=words):
        export_model(folder, tmp_path / "out", layer=1)
    assert not (tmp_path / "out").exists()


# ---- nothing is missing -------------------------------------------------------------------------------


# ---- runs ---------------------------------------------------------------------------------------------


def test_a_run_keeps_the_length_of_embeddings_and_no_head(source: Callable[[str], Path], tmp_path: Path) -> None:
    folder = source("Dense")
    _, (directory,) = tuned(folder, tmp_path / "cache", layers=(2,))
    done = export_model(directory, tmp_path / "out")
    assert done.modules == ("Pooling", "Normalize")
    assert "the run was trained without Dense of the model, and so is its export" in done.warnings
    assert (
        "16 features, with Normalize as in the base model; compared by cosine"
        in (tmp_path / "out" / "README.md").read_text()
    )
    expected = layerprobe_embeddings(directory / "model", 2, texts=SENTENCES, max_length=128)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = sentence_transformer(tmp_path / "out").encode(SENTENCES)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_model_without_some_blocks_keeps_its_modules(tmp_path: Path) -> None:
    folder = built(tmp_path, mean(), modules()["Normalize"](), length=20)
    done = export_model(Model(folder, blocks=(1, 3)), tmp_path / "out", layer=2)
    assert (done.compared_with, done.modules) == ("source", ("Pooling", "Normalize"))
    source, written = sentence_transformer(folder), sentence_transformer(tmp_path / "out")
    encoder = source[0].auto_model.encoder
    encoder.layer = torch.nn.ModuleList([encoder.layer[0], encoder.layer[2]])
    np.testing.assert_allclose(written.encode(SENTENCES), source.encode(SENTENCES), rtol=0, atol=1e-6)
    assert "(blocks 1, 3)" in (tmp_path / "out" / "README.md").read_text()


def test_a_head_is_left_out_of_a_model_without_the_last_block(tmp_path: Path) -> None:
    folder = built(tmp_path, mean(), dense())
    early, late = (
        export_model(Model(folder, blocks=warning), tmp_path / str(warning), layer=2) for warning in ((1, 2), (1, 3))
    )
    assert (early.modules, late.modules) == (("Pooling",), ("Pooling", "Dense"))
    assert any("without its Dense, which was trained on the last layer" in warning for warning in early.warnings)
