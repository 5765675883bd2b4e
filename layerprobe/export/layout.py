"""The files that turn a Hugging Face checkpoint into a sentence-transformers folder, and the result of an export.

Knows JSON; needs no sentence-transformers.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from layerprobe.encoders.model import Pooling
from layerprobe.encoders.recipe import INPUT, MODES, MODULES, POOLING, SETTINGS, Recipe, SentenceModel, sentence_model
from layerprobe.errors import ModelError
from layerprobe.files.serialisation import RARE
from layerprobe.names import short_name
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table, named_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8File:
    """A graph of the exported encoder with 8-bit products, which was reloaded and run."""

    backend: str
    """Library that runs it: onnx or openvino."""
    file: str
    """Path in the folder."""
    size: int
    """Size in bytes, with the files that belong to it."""
    n_texts: int
    """Number of texts on which it was compared with the model in float32."""
    cosine: float
    """Mean cosine over texts between its pooled embeddings and those in float32, -1 to 1."""
    lowest: float
    """Lowest cosine of any text."""

    @property
    def difference_text(self) -> str:
        """Its difference from float32, in words."""
        return (
            f"cosine to the embeddings in float32 {self.cosine:.4f} on average, {self.lowest:.4f} at worst "
            f"({self.n_texts} texts)"
        )


def parameters_phrase(n: int, whole: int) -> str:
    """Return the number of parameters of a model, compared with the full one.

    Examples:
        >>> parameters_phrase(300, 4000), parameters_phrase(4000, 4000)
        ('300 instead of 4,000', '4,000, as in the full model')
    """
    return f"{n:,} instead of {whole:,}" if n != whole else f"{n:,}, as in the full model"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExportResult(Shown):
    """A truncated encoder on disk, whose embeddings were compared with the original model's."""

    path: str
    """Path of the folder."""
    model: str
    """Name of the truncated model."""
    revision: str
    """Commit of the model, or the content digest of a local folder."""
    layer: int
    """Number of kept blocks."""
    n_blocks: int
    """Number of blocks of the original model."""
    parameters: int
    """Number of parameters of the truncated model, without the pooler."""
    whole_parameters: int
    """Number of parameters of the original model with all of its blocks, without the pooler."""
    pooling: str
    """Pooling of token states."""
    modules: tuple[str, ...]
    """Modules after the encoder in sentence-transformers; empty for an image encoder."""
    max_length: int | None
    """Most tokens per text; None for an image encoder."""
    prompt: str
    """Prefix of every text."""
    difference: float
    """Largest difference of any feature of an embedding before and after."""
    compared_with: Literal["layer", "source"]
    """Reference of the comparison: the pooled layer, or also sentence-transformers' embeddings by the cut source."""
    warnings: tuple[str, ...]
    """Warnings for users of the folder."""
    dtype: str = field(default="float32", metadata=RARE)
    """Precision of the weights."""
    changes: tuple[str, ...] = field(default=(), metadata=RARE)
    """Differences from the original model, in words: precision, length, pooling, prompts."""
    int8: tuple[Int8File, ...] = field(default=(), metadata=RARE)
    """8-bit graphs, if requested."""

    @property
    def table(self) -> Table:
        """One row per property of the folder."""
        rows = {
            "folder": self.path,
            "model": self.model,
            "revision": self.revision,
            "layer": f"{self.layer} of {self.n_blocks}",
            "parameters": parameters_phrase(self.parameters, self.whole_parameters),
            "pooling": self.pooling,
            **({"modules": ", ".join(self.modules)} if len(self.modules) > 1 else {}),
            **({} if self.max_length is None else {"max length": self.max_length}),
            **({"prompt": repr(self.prompt)} if self.prompt else {}),
            **({"weights": self.dtype} if self.dtype != "float32" else {}),
            **({"changed": "; ".join(self.changes)} if self.changes else {}),
            "reloaded": (f"the same embeddings to {self.difference:.0e}" if self.difference else "equal embeddings")
            + (", compared with the source's own encode" if self.compared_with == "source" else ""),
            **{
                f"8 bits, {model.backend}": f"{model.file}, {model.size / 1e6:.1f} MB; {model.difference_text}"
                for model in self.int8
            },
        }
        return named_values(rows, "Export")

    @property
    def conclusion(self) -> Conclusion:
        """Number of blocks written, and differences from the original model."""
        facts = {"size": Fact(value=self.parameters, unit="parameters")}
        if self.parameters != self.whole_parameters:
            share = Fact(value=self.parameters / self.whole_parameters - 1, unit="share", better="lower")
            whole = Fact(value=self.whole_parameters, unit="parameters")
            facts = {"parameters": share, **facts, "whole_size": whole}
        checks = [Check(name="changed", passed=None, names={"change": change}) for change in self.changes]
        for model in self.int8:
            of_model = {
                "cosine": Fact(value=model.cosine, unit="similarity"),
                "lowest": Fact(value=model.lowest, unit="similarity"),
                "texts": Fact(value=model.n_texts, unit="count"),
                "bytes": Fact(value=model.size, unit="bytes"),
            }
            checks.append(Check(name="8 bits", passed=None, facts=of_model, names={"backend": model.backend}))
        return Conclusion(
            kind="export",
            case="whole" if self.layer == self.n_blocks else "cut",
            verdict=Verdict.DECIDED,
            subject=(self.model,),
            choice=Choice.upto(self.n_blocks, self.layer),
            facts=facts,
            names={"folder": self.path, "model": short_name(self.model), "dtype": self.dtype, "layer": self.layer},
            checks=tuple(checks),
        )

    @property
    def sources(self) -> dict[str, str]:
        """The model."""
        return {"Model": f"{self.model}, revision {self.revision}"}


IMAGES = "embedding.json"
# `encode` uses the default prompt; `encode_query` and `encode_document` use those of their names, empty or not.
_PROMPTS = ("default", "query", "document")
_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
"""Files of a module after an encoder."""


FOR_ANY_LAYER = ("Pooling", "Normalize", "Dropout", "WordWeights")
TRAINED = ("Dense", "LayerNorm", "WeightedLayerPooling")
"""Modules of sentence-transformers that suit any layer, and those trained on the last layer."""


def check_modules(types: Sequence[str], *, name: str) -> None:
    """Raise ModelError unless modules, by full class names, can follow another layer."""
    kinds = [path.rpartition(".")[2] for path in types]
    odd = [
        path
        for i, (path, kind) in enumerate(zip(types, kinds, strict=True))
        if not path.startswith("sentence_transformers.") or (i and kind not in FOR_ANY_LAYER + TRAINED)
    ]
    if odd or kinds[0] != "Transformer" or kinds.count("Pooling") != 1:
        raise ModelError(
            f"{name} has the modules {', '.join(odd or kinds)}, which cannot be exported: expected Transformer, "
            f"Pooling and {', '.join((*FOR_ANY_LAYER[1:], *TRAINED))} of sentence-transformers; to export without "
            f"them, remove {MODULES} from a copy of the folder"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How token states become one embedding."""

    pooling: Pooling
    width: int
    """Number of features of a token state."""
    max_length: int
    """Most tokens per text, special tokens included."""
    prompt: str
    """Prefix of every text."""
    n_extra: int | None = None
    """For image models: number of tokens before the patches, which mean and max ignore; None for text models."""
    query_prompt: str = ""
    """Prefix of every query instead, if documents have another."""
    document_prompt: str = ""
    """Prefix of every document instead."""
    normalize: bool = False
    """Whether embeddings are normalised to length 1; a source decides this by its modules."""
    dense: Path | None = None
    """Folder of a Dense module after the pooling, for fewer features; only without a source."""
    int8: tuple[str, ...] = ()
    """Backends with an 8-bit graph of the encoder in the folder."""
    source: SentenceModel | None = None
    """The sentence-transformers model whose settings are kept unless requested otherwise."""
    behind: tuple[int, ...] = ()
    """Numbers of its modules that are kept, besides the encoder."""
    changed: tuple[str, ...] = ()
    """Settings that were requested instead of the source's, such as pooling and prompt."""
    dtype: str = "float32"
    """Precision of the weights."""

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules after the encoder."""
        if self.n_extra is not None:
            return ()
        if self.source is not None:
            return tuple(self.source.kinds[i] for i in self.behind)
        return ("Pooling", *("Dense",) * (self.dense is not None), *("Normalize",) * self.normalize)

    @property
    def pooled(self) -> str:
        """Name of the pooling."""
        return self.pooling if self.source is None or "pooling" in self.changed else self.source.pooled

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by their names in sentence-transformers."""
        if self.source is not None and "prompt" not in self.changed:
            return self.source.settings.get("prompts") or {}
        if self.query_prompt != self.document_prompt:
            return {"query": self.query_prompt, "document": self.document_prompt}
        return dict.fromkeys(_PROMPTS, self.prompt) if self.prompt else {}


@contextlib.contextmanager
def open_source(recipe: Recipe) -> Iterator[SentenceModel | None]:
    """Yield the sentence-transformers model of a recipe, None without one; a loaded model is saved temporarily."""
    if recipe.source is None or isinstance(recipe.source, SentenceModel):
        yield recipe.source
        return
    with tempfile.TemporaryDirectory() as folder:
        recipe.source.save(folder, create_model_card=False)
        yield sentence_model(lambda file: path if (path := Path(folder, file)).is_file() else None)


def write_layout(folder: Path, layout: Layout) -> None:
    """Write the files that sentence-transformers needs with a checkpoint: modules, pooling, length, prompt, similarity.

    For image models, write how states become an embedding, as information.
    """
    if layout.n_extra is not None:
        # sentence-transformers would average all tokens, including [CLS] and registers
        _write(folder / IMAGES, {"pooling": layout.pooling, "width": layout.width, "tokens_before": layout.n_extra})
        return
    modes = {key: mode == layout.pooling for mode, key in MODES.items()}
    pooling = {"word_embedding_dimension": layout.width, **modes, "include_prompt": True}
    settings = {
        "model_type": "SentenceTransformer",
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "prompts": layout.prompts,
        "default_prompt_name": _PROMPTS[0] if layout.prompt else None,
        "similarity_fn_name": "cosine",
    }
    if (source := layout.source) is None:
        paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(layout.modules, 1))]
        types = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", *layout.modules)]
        rows = [{"path": path, "type": kind} for path, kind in zip(paths, types, strict=True)]
        _write(folder / POOLING, pooling)
        if layout.dense is not None:
            shutil.copytree(layout.dense, folder / "2_Dense", ignore=lambda _, names: {*names} - {*_FILES})
        reading: dict[str, Any] = {}
    else:
        rows = [{**source.rows[0], "path": ""}, *(source.rows[i] for i in layout.behind)]
        for row in rows[1:]:
            for file in _FILES:
                if (original := source.find(f"{row['path']}/{file}")) is not None:
                    (folder / row["path"]).mkdir(exist_ok=True)
                    shutil.copyfile(original, folder / row["path"] / file)
            if "pooling" in layout.changed and row["type"].endswith(".Pooling"):
                _write(folder / row["path"] / "config.json", pooling)
        keys = ("prompts", "default_prompt_name") if "prompt" in layout.changed else ()
        settings |= {key: value for key, value in source.settings.items() if key not in keys}
        reading = source.reading
    _write(folder / MODULES, [{**row, "idx": i, "name": str(i)} for i, row in enumerate(rows)])
    _write(folder / INPUT, {"do_lower_case": False, **reading, "max_seq_length": layout.max_length})
    _write(folder / SETTINGS, settings)


def fetch_modules(source: SentenceModel) -> None:
    """Download missing files of all modules; local folders have them already."""
    for row in source.rows[1:]:
        for file in _FILES:
            source.find(f"{row['path']}/{file}")


def check_activations(source: SentenceModel, *, name: str) -> None:
    """Raise ModelError if a Dense module has an activation from outside of torch, because its code would run."""
    for row in source.rows[1:]:
        if row["type"].endswith(".Dense") and (file := source.find(f"{row['path']}/config.json")) is not None:
            activation = str(_read(file).get("activation_function", "torch."))
            if not activation.startswith("torch."):
                raise ModelError(f"{name} has a Dense with {activation}: expected an activation of torch.nn")


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
