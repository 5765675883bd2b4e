"""An export in 8 bits: the graphs that are measured, where others load them, and how far they are from float32."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from layerprobe.embedded import embedded_model
from layerprobe.encoders.batching import pool
from layerprobe.encoders.engines import FILES, int8_graphs, read_int8
from layerprobe.encoders.graphs import USUAL_TEXTS
from layerprobe.encoders.loading import load_encoder
from layerprobe.errors import DataError, ModelError
from layerprobe.export import folder as checkpoint
from layerprobe.export.run import ExportResult, export_model
from layerprobe.files.atomic import folder_problems
from layerprobe.metrics.scores import cosine_scores
from tests.images import save_vision

from .judges import sentence_transformer

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
BOTH = ("onnx", "openvino")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    """The embedded `mlm` with five blocks, and graphs for both backends; read it, do not change it."""
    return export_model(embedded_model("mlm"), tmp_path_factory.mktemp("int8") / "out", layer=5, int8=BOTH)


def tokens(folder: Path, texts: Any = USUAL_TEXTS) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = AutoTokenizer.from_pretrained(folder)(
        list(texts), padding=True, return_tensors="pt"
    )
    return found


@pytest.mark.slow
def test_its_graphs_are_those_that_are_measured(exported: ExportResult) -> None:
    folder, encoder = Path(exported.path), load_encoder(exported.path, device="cpu")
    batch, measured = tokens(folder), int8_graphs(encoder, "mean")
    for backend in BOTH:
        states = torch.from_numpy(read_int8(folder, backend).run(batch))
        ours = pool(states, batch["attention_mask"], "mean").numpy()
        theirs = measured[f"{backend} int8"][0].run(batch)[-1]
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        apart = np.abs(ours - measured[f"{backend} int8 weights"][0].run(batch)[-1]).max()
        # OpenVINO rounds activations only on processors with instructions for products of 8 bits
        assert apart > 1e-3 or (backend == "openvino" and apart < 1e-5), "expected activations, too"


@pytest.mark.slow
def test_what_is_said_is_how_far_it_is_from_float32(exported: ExportResult) -> None:
    folder = Path(exported.path)
    expected = sentence_transformer(folder).encode(list(USUAL_TEXTS), batch_size=len(USUAL_TEXTS))
    assert [each.backend for each in exported.int8] == list(BOTH)
    for each in exported.int8:
        batch = tokens(folder)
        states = torch.from_numpy(read_int8(folder, each.backend).run(batch))
        cosines = cosine_scores(pool(states, batch["attention_mask"], "mean").numpy(), expected)
        assert each.n_texts == len(cosines) == 10
        assert each.cosine == pytest.approx(cosines.mean(), abs=1e-6)
        assert each.lowest == pytest.approx(cosines.min(), abs=1e-6)
        assert each.lowest < each.cosine < 1 - 1e-6, "expected rounding"
        assert each.difference_text in (folder / "README.md").read_text()


@pytest.mark.slow
def test_its_files_are_small_and_in_the_list_of_checksums(exported: ExportResult) -> None:
    folder = Path(exported.path)
    sums = (folder / "SHA256SUMS").read_text()
    for each in exported.int8:
        assert each.file == FILES[each.backend].as_posix()
        assert each.file in sums
        assert each.size == sum(file.stat().st_size for file in (folder / each.backend).iterdir())
        assert each.size < (folder / "model.safetensors").stat().st_size * 1.5  # of half precision
    assert not list(folder_problems(folder))


class OptimumLike(torch.nn.Module):
    """What optimum's ORTModelForFeatureExtraction does with a graph that is there, by ONNX Runtime alone."""

    def __init__(self, file: Path, config: Any) -> None:
        import onnxruntime

        super().__init__()
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.config = config

    @classmethod
    def from_pretrained(cls, folder: str, *, config: Any, export: bool, **said: Any) -> OptimumLike:
        assert not export, "expected the file to be found"
        return cls(Path(folder, said["subfolder"], said["file_name"]), config)

    def _save_pretrained(self) -> None: ...

    def forward(self, **features: torch.Tensor) -> BaseModelOutput:
        features.pop("return_dict", None)
        wanted = [each.name for each in self.session.get_inputs()]
        assert set(wanted) == set(features), "expected what the tokenizer gives"
        names = [each.name for each in self.session.get_outputs()]
        found = self.session.run(None, {name: features[name].numpy() for name in wanted})
        return BaseModelOutput(
            last_hidden_state=torch.from_numpy(dict(zip(names, found, strict=True))["last_hidden_state"])
        )


@pytest.mark.slow
def test_sentence_transformers_finds_it(exported: ExportResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own loader; optimum, which is not installed, is stood in for."""
    sentence_transformer(Path(exported.path))  # its imports
    from sentence_transformers import SentenceTransformer

    stand_in: Any = types.ModuleType("optimum.onnxruntime")
    for kind in ("CausalLM", "FeatureExtraction", "MaskedLM", "SequenceClassification"):
        setattr(stand_in, f"ORTModelFor{kind}", OptimumLike)
    stand_in.ONNX_WEIGHTS_NAME = "model.onnx"
    for name, module in (("optimum", types.ModuleType("optimum")), ("optimum.onnxruntime", stand_in)):
        monkeypatch.setitem(sys.modules, name, module)
    card = (Path(exported.path) / "README.md").read_text()
    (said,) = [line for line in card.splitlines() if 'backend="onnx"' in line]
    model = eval(
        said.partition(" = ")[2].replace("path/to/this/folder", exported.path),
        {"SentenceTransformer": SentenceTransformer},
    )
    ours, theirs = (each.encode(list(USUAL_TEXTS)) for each in (model, sentence_transformer(Path(exported.path))))
    assert isinstance(model[0].model, OptimumLike)
    assert cosine_scores(ours, theirs).mean() == pytest.approx(exported.int8[0].cosine, abs=1e-6)


# ---- refused ------------------------------------------------------------------------------------------


def refused(*arguments: Any, match: str, error: type[Exception], **how: Any) -> None:
    model, out = arguments
    with pytest.raises(error, match=match):
        export_model(model, out, **{"layer": 1, "int8": "onnx", **how})
    assert not out.exists()
    assert not list(out.parent.glob(".tmp*"))


def test_what_cannot_be_rounded(bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(
        bert, out, int8="onx", match="expected 8 bits for onnx or openvino, got 'onx'; did you mean", error=DataError
    )
    refused(bert, out, int8=True, match="expected 8 bits for onnx or openvino, got True", error=DataError)
    vision = save_vision("vit", tmp_path / "vision")
    refused(vision, out, match="expected a text model to write in 8 bits, got an image model", error=DataError)


@pytest.mark.slow
def test_a_graph_that_gives_other_embeddings(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LEAST", 2.0)
    message = r"in 8 bits by onnx the embeddings of .*bert have a mean cosine of .* expected at least 2.0: nothing was"
    refused(bert, tmp_path / "out", match=message, error=ModelError)
    message = "has no matrix product with weights to compute in 8 bits"
    refused(bert, tmp_path / "out", layer=0, match=message, error=ModelError)


def test_an_exporter_that_fails_names_the_model(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such operation. More of it")

    monkeypatch.setattr("layerprobe.encoders.engines.exported", fails)
    words = r"^rounding to 8 bits of .*bert failed: no such operation; use"
    refused(bert, tmp_path / "out", match=words, error=ModelError)
