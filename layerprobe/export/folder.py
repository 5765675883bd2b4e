"""The folder of an export: the layout of its files, and how they are written and verified.

Knows encoders and folders; needs no sentence-transformers.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from layerprobe.encoders.architecture import count_blocks, place_like, pooler_option
from layerprobe.encoders.batching import collate, pool
from layerprobe.encoders.device import DTYPES
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH, PROBE_TEXTS, Encoder, TruncatedEncoder, reads_token_types
from layerprobe.encoders.engines import FILES, read_int8, write_int8
from layerprobe.encoders.failures import model_errors, quiet_transformers
from layerprobe.encoders.graphs import USUAL_TEXTS, Graph
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, Pooling
from layerprobe.encoders.recipe import INPUT, MODES, MODULES, POOLING, SETTINGS, SentenceModel
from layerprobe.errors import DataError, ModelError, option
from layerprobe.files.atomic import FREE, SUMS, folder_errors, folder_problems, listed_files, new_folder
from layerprobe.files.images import ImageItem, prompted
from layerprobe.files.inputs import from_home
from layerprobe.metrics.scores import cosine_scores
from layerprobe.names import some
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import Undrawn, without_autocast


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


# ---- how token states become an embedding ---------------------------------------------------------------


IMAGES = "embedding.json"
# `encode` uses the default prompt; `encode_query` and `encode_document` use those of their names, empty or not.
_PROMPTS = ("default", "query", "document")
_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
"""Files of a module after an encoder."""


FOR_ANY_LAYER = ("Pooling", "Normalize", "Dropout", "WordWeights")
MEAN = "WeightedLayerPooling"
TRAINED = ("Dense", "LayerNorm", MEAN)
"""Modules of sentence-transformers that suit any layer, the mean of layers, and modules trained on the last layer."""


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
    weights: tuple[float, ...] = ()
    """Weights of layers 0 to the last one in the mean of their token states, sum 1; empty for the last layer alone."""
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
        modules = {"Pooling": True, "Dense": self.dense is not None, "Normalize": self.normalize}
        return tuple(name for name, present in modules.items() if present)

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
    if len(layout.weights) > 1:  # without a block, transformers outputs no list of layers
        rows.insert(1, {"path": MEAN, "type": f"sentence_transformers.models.{MEAN}"})
        config = {"layer_start": 0, "num_hidden_layers": len(layout.weights) - 1}
        _write(folder / MEAN / "config.json", {"word_embedding_dimension": layout.width, **config})
        save_file({"layer_weights": torch.tensor(layout.weights)}, folder / MEAN / "model.safetensors")
    _write(folder / MODULES, [{**row, "idx": i, "name": str(i)} for i, row in enumerate(rows)])
    _write(folder / INPUT, {"do_lower_case": False, **reading, "max_seq_length": layout.max_length})
    _write(folder / SETTINGS, settings)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# ---- written and verified --------------------------------------------------------------------------------


# Largest difference of any feature of an embedding after reloading.
TOLERANCE = 1e-5
# Smallest mean cosine between embeddings in 8 bits and in float32 of an exported graph.
LEAST = 0.9
_PRIVATE = ("name_or_path", "is_local", "local_files_only", "trust_remote_code", "auto_map")
_ADVICE = "choose another folder for the export"

Verified = tuple[float, bool, tuple[Int8File, ...]]
"""The largest difference of any feature of an embedding after reloading, 0 .. 1e-5, whether embeddings by
sentence-transformers were compared as well, and the 8-bit graphs."""


def write_checkpoint(
    encoder: Encoder, layer: int, out: Path, *, layout: Layout, card: Callable[..., str], overwrite: bool = False
) -> Verified:
    """Write the encoder truncated at `layer` as a folder: complete and verified at `out`, or not at all.

    The encoder is on a CPU in float32, with its final norm if it has one; `card` returns the text of README.md,
    given the results of 8-bit graphs as `int8`; see `check_target` for `out` and `overwrite`.
    """
    target = check_target(out, overwrite=overwrite)
    with folder_errors(out, advice=_ADVICE), new_folder(target, replace=overwrite) as folder:
        _write_model(encoder, layer, folder, layout)
        write_layout(folder, layout)
        difference = _verify(encoder, layer, folder, layout)
        of_source = _difference_from_source(encoder, layer, folder, layout)
        files = _write_8_bits(encoder, folder, layout)
        (folder / "README.md").write_bytes(card(int8=files).encode("utf-8", "backslashreplace"))
        return max(difference, of_source or 0.0), of_source is not None, files


def check_target(out: Path, *, overwrite: bool, source: Path | None = None) -> Path:
    """Return the real path of a folder that may be written.

    With `overwrite` an earlier export is replaced, but nothing else: neither another model, nor the exported
    local model `source`, nor files that others added to an export.
    """
    target = Path(os.path.realpath(from_home(out)))
    with folder_errors(out, advice=_ADVICE):
        if not target.exists():
            return target
        if not target.is_dir():
            raise DataError(f"expected a folder to export to, got the file {out}")
        if not any(target.iterdir()):
            return target
    if not is_export(target):
        raise DataError(
            f"{out} has files that layerprobe did not write and never replaces: choose another folder, or delete it "
            f"yourself if it is an export whose {SUMS} is missing or damaged"
        )
    if source is not None and target in (real := Path(os.path.realpath(source)), *real.parents):
        raise DataError(f"{out} is the folder of the model itself: choose another folder")
    if not overwrite:
        raise DataError(
            f"{out} contains an earlier export: choose another folder, or replace it with {option('overwrite', True)}"
        )
    files = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    if more := sorted({path.relative_to(target).as_posix() for path in files} - {*listed_files(target), *FREE}):
        raise DataError(
            f"{out} contains files besides the export that would be lost: {some(more)}: move them "
            "elsewhere, or choose another folder"
        )
    return target


def is_export(folder: Path) -> bool:
    """Return whether layerprobe wrote a folder as an export: its card and its list of checksums show it."""
    card = folder / "README.md"
    names = listed_files(folder)
    if "config.json" not in names or names.isdisjoint((MODULES, IMAGES)) or not card.is_file():
        return False
    return "- layerprobe" in card.read_text("utf-8", errors="replace").splitlines()


def has_text(folder: Path, text: str) -> bool:
    """Return whether a folder is an unchanged export whose card contains a text."""
    target = from_home(folder)
    if not is_export(target) or next(folder_problems(target), None):
        return False
    return text in (target / "README.md").read_text("utf-8", errors="replace")


def kept_dtype(encoder: Encoder, declared: str) -> str:
    """Return the dtype of a source if all weights still have it, else float32, in which they are loaded."""
    dtype = DTYPES.get(declared)
    if dtype is None:
        return "float32"
    same = (weight.equal(weight.to(dtype).to(weight.dtype)) for weight in encoder.model.parameters())
    return declared if all(same) else "float32"


def written_bytes(encoder: Encoder, declared: str) -> int:
    """Return the bytes of the weights in an export of all layers, without the header of the file."""
    width = (DTYPES[kept_dtype(encoder, declared)] or torch.float32).itemsize
    tensors = {(t.data_ptr(), t.shape): t for t in with_pooler(encoder.model).state_dict().values()}  # shared ones once
    return sum(t.numel() * (width if t.is_floating_point() else t.element_size()) for t in tensors.values())


def _write_model(encoder: Encoder, layer: int, folder: Path, layout: Layout) -> None:
    truncated = TruncatedEncoder(encoder, layer)
    truncated.model = with_pooler(truncated.model)
    nn.Module.to(truncated.model, dtype=DTYPES[layout.dtype] or torch.float32)
    config = truncated.model.config
    if hasattr(config, "auto_map"):  # refers to code that is neither in the folder nor needed
        del config.auto_map
    tokenizer = encoder.tokenizer_to_save()
    with quiet_transformers():
        truncated.save(folder, tokenizer)
    if encoder.modality == "image":
        _change_json(folder / "config.json", drop=("_name_or_path", "auto_map"))
        return
    names = list(tokenizer.model_input_names)
    if not reads_token_types(truncated.model):
        # GPT-2 and XLM would look the ids up as words
        names = [name for name in names if name != "token_type_ids"]
    # transformers 5 writes only a tokenizer's initial settings
    _change_json(
        folder / "tokenizer_config.json",
        drop=_PRIVATE,
        model_input_names=names,
        model_max_length=layout.max_length,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
    )
    states = {"output_hidden_states": True} if layout.weights else {}
    _change_json(folder / "config.json", drop=("_name_or_path", "auto_map"), **states)


def with_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with a pooler of zeros if transformers would create one and report missing weights."""
    if not pooler_option(type(model)):
        return model
    with MAKING_MODELS, Undrawn():
        whole: PreTrainedModel = cast(Any, type(model))(model.config).train(False)
    for name, weight in whole.named_parameters():
        if "pooler" in name.split("."):
            torch.nn.init.zeros_(weight)
            weight.data = weight.data.to(model.dtype)
    whole.load_state_dict(model.state_dict(), strict=False, assign=True)
    place_like(whole, model)
    return whole


def _change_json(path: Path, *, drop: tuple[str, ...], **values: Any) -> None:
    before = json.loads(path.read_text(encoding="utf-8"))
    after = {key: value for key, value in before.items() if key not in drop} | values
    path.write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---- the proof -------------------------------------------------------------------------------------------


def _verify(encoder: Encoder, layer: int, folder: Path, layout: Layout) -> float:
    written = load_encoder(str(folder), device="cpu")
    loaded, expected = written.description, encoder.description
    if (loaded.n_blocks, loaded.parameters[-1]) != (layer, expected.parameters[layer]):
        raise ModelError(
            f"expected {layer} blocks and {expected.parameters[layer]} parameters in the exported {expected.name}, "
            f"got {loaded.n_blocks} and {loaded.parameters[-1]}: nothing was exported"
        )
    before = _embeddings_of_layer(encoder, layer, layout)
    with quiet_transformers(), MAKING_MODELS:
        after = _encoded(folder, layout) if layout.weights else _embeddings_of_folder(written, layout, written.probes)
    difference = float(np.abs(after - before).max())
    if not difference <= TOLERANCE:  # or NaN
        advice = "expected mean, cls or last pooling" if layout.weights else "run `layerprobe check` on it"
        raise ModelError(
            f"the exported layer {layer} of {expected.name} has other embeddings after reloading (difference "
            f"{difference:.1e}, allowed {TOLERANCE:.0e}): nothing was exported; {advice}"
        )
    return difference


def _difference_from_source(encoder: Encoder, layer: int, folder: Path, layout: Layout) -> float | None:
    """Return the difference between sentence-transformers' embeddings by a folder and by the truncated source.

    None if there is no such source, options differ from it, or sentence-transformers is not installed.
    """
    source = layout.source
    name = encoder.description.name
    if source is None or layout.changed or (modules := source.find(MODULES)) is None:
        return None
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:  # or it does not fit the installed transformers
        return None
    for row in source.rows[1:]:  # of a model of the Hub, modules that are not kept may be missing
        for file in _FILES:
            source.find(f"{row['path']}/{file}")
    with quiet_transformers(), MAKING_MODELS, model_errors(name, "encoding by sentence-transformers"):
        whole, written = (
            SentenceTransformer(str(folder_of_one), device="cpu", local_files_only=True).float()
            for folder_of_one in (modules.parent, folder)
        )
        children = whole[0].named_children()
        inner, model = next((key, module) for key, module in children if isinstance(module, PreTrainedModel))
        if count_blocks(model.config) != layer:
            setattr(whole[0], inner, TruncatedEncoder(encoder, layer, share=True).model)
        for i in reversed(range(1, len(source.rows))):
            if i not in layout.behind:
                del whole[i]
        # one text is longer than the limit, unless the limit is high
        near = layout.max_length if layout.max_length <= DEFAULT_MAX_LENGTH else 0
        long = " ".join(PROBE_TEXTS * (1 + near // 20))  # they have more than 20 words
        texts = [*PROBE_TEXTS, *map(str.upper, PROBE_TEXTS), long]
        how = {"batch_size": 1, "show_progress_bar": False}
        encoders: tuple[Any, Any] = whole, written
        before, after = (
            np.concatenate([model.encode(texts, prompt_name=prompt, **how) for prompt in (None, *whole.prompts)])
            for model in encoders
        )
    difference = float(np.abs(after - before).max()) if after.shape == before.shape else np.inf
    if not difference <= TOLERANCE:  # or NaN
        raise ModelError(
            f"in sentence-transformers, the exported layer {layer} of {name} has other embeddings than the model cut "
            f"at that layer (difference {difference:.1e}, allowed {TOLERANCE:.0e}): nothing was exported"
        )
    return difference


def _write_8_bits(encoder: Encoder, folder: Path, layout: Layout) -> tuple[Int8File, ...]:
    """Write the 8-bit graphs, and return their differences from the model in float32."""
    if not layout.int8:
        return ()
    name = encoder.description.name
    files: list[Int8File] = []
    if layout.n_extra is not None:
        raise DataError("expected a text model to write in 8 bits, got an image model")
    written = load_encoder(Model(str(folder), display_name=name), device="cpu")
    write_int8(written, folder, layout.int8)
    expected = _embeddings_of_folder(written, layout, USUAL_TEXTS)
    for backend in layout.int8:
        embeddings = _embeddings_of_folder(written, layout, USUAL_TEXTS, read_int8(folder, backend))
        cosines = cosine_scores(embeddings, expected)
        file = folder / FILES[backend]
        if cosines.mean() < LEAST:
            raise ModelError(
                f"in 8 bits by {backend} the embeddings of {name} have a mean cosine of {cosines.mean():.3f} to "
                f"those in float32, expected at least {LEAST}: nothing was exported; export it without 8 bits"
            )
        files.append(
            Int8File(
                backend=backend,
                file=FILES[backend].as_posix(),
                size=sum(part.stat().st_size for part in file.parent.glob(f"{file.stem}.*")),
                n_texts=len(cosines),
                cosine=float(cosines.mean()),
                lowest=float(cosines.min()),
            )
        )
    return tuple(files)


@without_autocast()
@torch.inference_mode()
def _embeddings_of_layer(encoder: Encoder, layer: int, layout: Layout) -> NDArray[np.float32]:
    """Return the embeddings of the probe texts as in extraction, from the full model, or their weighted mean."""
    tokens = encoder.tokenize(prompted(layout.prompt, encoder.probes), max_length=layout.max_length)
    embeddings = []
    for rows in _batches(encoder, encoder.probes):
        batch = collate(tokens, rows, encoder.device)
        weighted = zip(layout.weights or (*[0] * layer, 1), encoder.layer_states(batch), strict=False)
        pooled = [
            weight * pool(states, batch["attention_mask"], layout.pooling) for weight, states in weighted if weight
        ]
        embeddings.append(torch.stack(pooled).sum(dim=0))
    return torch.cat(embeddings).numpy()


def _encoded(folder: Path, layout: Layout) -> NDArray[np.float32]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
    how: dict[str, Any] = {"prompt": "", "batch_size": 1, "truncate_dim": layout.width, "show_progress_bar": False}
    embeddings: NDArray[np.float32] = model.encode(prompted(layout.prompt, PROBE_TEXTS), **how)
    return embeddings


@without_autocast()
@torch.inference_mode()
def _embeddings_of_folder(
    written: Encoder, layout: Layout, probes: Sequence[str], graph: Graph | None = None
) -> NDArray[np.float32]:
    """Return the embeddings as a user of the folder would compute them, passing all tokenizer outputs to the model.

    The model runs with torch, or as a graph of its token states.
    """
    embeddings = []
    for rows in _batches(written, probes):
        texts = prompted(layout.prompt, [probes[row] for row in rows])
        with model_errors(written.description.name, "a forward pass"):
            if written.modality == "image":
                images = [item.read() for item in texts if isinstance(item, ImageItem)]
                states = written.model(**written.tokenizer(images=images, return_tensors="pt")).last_hidden_state
                patches = states[:, layout.n_extra :]
                by_card = {"cls": states[:, 0], "mean": patches.mean(1), "max": patches.amax(1)}
                embeddings.append(by_card[layout.pooling])
                continue
            batch = written.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            states = written.model(**batch).last_hidden_state if graph is None else torch.from_numpy(graph.run(batch))
        embeddings.append(pool(states, batch["attention_mask"], layout.pooling))
    return torch.cat(embeddings).numpy()


def _batches(encoder: Encoder, probes: Sequence[str]) -> Iterator[list[int]]:
    """Yield one batch of all texts, or single texts if padding would change them."""
    rows = list(range(len(probes)))
    return iter([rows] if encoder.padding_invariant else [[row] for row in rows])
