"""Export a model or a fine-tuning run at a layer as a folder, and the result."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerprobe.checks import check_extra, layer_numbers, one_layer
from layerprobe.encoders.architecture import auto_class, count_blocks, declared_dtype, known_class, position_limit
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.engines import check_int8
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import NO_LIMIT, load
from layerprobe.encoders.model import DEFAULTS, Model, ModelDescription, split_name
from layerprobe.encoders.recipe import Recipe, SentenceModel, other_similarity, sentence_model
from layerprobe.errors import DataError, ModelError, option
from layerprobe.export.card import card, parameters_phrase
from layerprobe.export.folder import (
    FOR_ANY_LAYER,
    MEAN,
    Int8File,
    Layout,
    check_modules,
    check_target,
    kept_dtype,
    write_checkpoint,
)
from layerprobe.files.atomic import SUMS, folder_problems
from layerprobe.files.serialisation import RARE
from layerprobe.finetuning.runs import MODEL, RunOrigin, load_saved_run, runs_of_layer
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.names import listed, short_name
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table, named_values
from layerprobe.study.values import Finding


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


def export_model(
    model: ModelLike | Finding,
    out: str | Path,
    *,
    layer: int | Shown | None = None,
    weights: Shown | Mapping[int, float] | None = None,
    finding: Finding | None = None,
    made: str = "",
    dense: str | Path | None = None,
    prompts: tuple[str, str] | None = None,
    int8: str | Sequence[str] = (),
    overwrite: bool = False,
) -> ExportResult:
    """Write a model truncated at a layer as a folder for transformers and sentence-transformers.

    The folder's embeddings match layerprobe's embeddings of that layer to 1e-5: it is reloaded and compared
    before it gets its name. It appears completely or not at all.

    For a sentence-transformers model, modules, prompts, flags and length are kept and, if that library is installed,
    its embeddings by the folder are compared with those by the truncated model. Modules that were trained
    on the last layer, such as Dense, are omitted at earlier layers; a warning says so.

    Args:
        model: A name, a folder, a `Model` or a checkpoint, or the directory of a fine-tuning run with saved weights;
            for a joint run, any layer is available. Pooling, length and prompt are the model's; a run has its own. Or a
            result of a search whose runs kept their weights.
        out: Folder to write.
        layer: Number of blocks to keep, 0 .. n_blocks or -1 for all, or a result that chooses a layer, such as a
            prediction or a finding; a run of TMFT has its own.
        weights: Instead of a layer, a number for each of several layers, such as {3: 0.4, 6: 0.6}: the embedding is
            their weighted mean, by the module `WeightedLayerPooling`, and blocks after the last one are cut. Or the
            result of `probe(model, task, weighted_mean=True)`, which is also evidence for the card.
        finding: Evidence for the card, for the same model.
        made: Description for the card: how the model was made and what was measured.
        dense: For a run, the folder of a map of its embeddings to fewer dimensions, such as `Shrunk.dense`.
        prompts: For a run of `shrink`, prompts before queries and before documents, such as `Shrunk.prompts`: the card
            shows how to search documents that the whole model embedded.
        int8: Backends with an 8-bit graph of the encoder in the folder, weights and activations, as
            `shrink` measures it: "onnx" and "openvino". It is reloaded, and its difference from float32 is reported.
        overwrite: Replace an earlier export at `out`.

    Returns:
        The written folder, and its difference from the model.

    Raises:
        ModelError: If the model cannot be loaded, needs its own code, has modules that cannot be kept, or
            the export differs from it.
        UnsupportedArchitectureError: If it cannot be truncated at that layer.
        DataError: If an option contradicts the run, the finding is for another model, `out` is in use, or 8
            bits are requested for images or for another backend.
        MissingPackageError: If the packages of such a backend are not installed.
        StoreError: If the folder cannot be written.
    """
    backends = check_int8(int8)
    out = Path(out)
    layer = None if layer is None else one_layer(layer)
    notes: list[str] = []
    if isinstance(model, Finding):
        finding = finding or model
        if not model.weights.n_train:
            notes.append(
                "these weights come from one run of the search, which used only part of the labels: "
                "find(..., final=True) uses all of them"
            )
        model = _finding_run(model, layer)
        layer = None
    source = _local_folder(model)
    saved = None if source is None or isinstance(model, Resolved) else load_saved_run(source, layer)
    if weights is not None and (layer is not None or int8 or saved):
        raise DataError("expected weights for the layers of a model, without a layer, 8 bits or a fine-tuning run")
    evidence: Any = weights if isinstance(weights, Shown) else finding
    asked = model.asked if isinstance(model, Resolved) else model if isinstance(model, Model) else DEFAULTS
    query_prompt = document_prompt = ""
    normalize = False
    recipe = Recipe()
    mean: tuple[float, ...] = ()
    at_end = True
    if saved is None:
        if dense is not None:
            raise DataError("expected the directory of a run with a map to fewer dimensions, got a model")
        if layer is None and weights is None:
            raise DataError(
                "expected a layer to truncate at, 0 for the embeddings alone; the folder of a run needs none"
            )
        checkpoint = _resolved(model, out)
        check_target(out, overwrite=overwrite, source=source)
        encoder = load(checkpoint)
        mean = () if weights is None else _shares(weights, encoder)
        layer = one_layer(len(mean) - 1 if mean else layer, count_blocks(encoder.model.config), of=checkpoint.label)
        pooling = checkpoint.pooling
        max_length = checkpoint.max_length
        prompt = checkpoint.prompt
        if asked.prompt is None and not prompt:
            query_prompt, document_prompt = checkpoint.recipe.retrieval_prompts or ("", "")
        described = encoder.description
        declared = declared_dtype(checkpoint.whole or checkpoint.config)
        source_length = checkpoint.recipe.max_length or encoder.max_length
        recipe = checkpoint.recipe
        n_blocks = count_blocks(checkpoint.whole or checkpoint.config)
        at_end = layer == described.n_blocks and n_blocks in (checkpoint.asked.blocks or (n_blocks,))
        read_with = replace(recipe, left_out=()).notes(pooling, prompt)
        notes += [*checkpoint.tokenizer_cautions, *(f"{described.name} is read with {note}" for note in read_with)]
        notes += [
            f"this is the {checkpoint.modality} tower; the {tower} tower is {described.name}:{tower}"
            for tower in checkpoint.towers
            if tower != checkpoint.modality
        ]
    else:
        if dense is not None:
            lost = None if Path(dense, SUMS).is_file() else f"{dense} has none"
            if problem := next(folder_problems(Path(dense)), lost):
                raise DataError(f"expected a map to fewer dimensions: {problem}; run shrink again")
        check_target(out, overwrite=overwrite, source=source)
        run, origin = saved
        _check_options_agree(run, origin, layer, asked)
        layer = run.layer
        if asked.end_token is not None:
            raise DataError(f"expected no {option('end_token')}: the run has its own tokenizer")
        if asked.blocks is not None:
            raise DataError(f"expected no {option('keep_blocks')}: the run has its own blocks")
        # the saved tokenizer already appends it
        encoder = load(_resolved(Model(str(run.directory / MODEL), end_token=False), out))
        pooling = run.protocol.pooling
        max_length = run.protocol.max_length
        prompt = origin.prompt
        query_prompt, document_prompt = prompts or (origin.query_prompt, origin.document_prompt)
        described = origin.model
        declared = origin.dtype
        source_length = origin.max_length
        normalize = "Normalize" in origin.modules
        if left := [module for module in origin.modules if module not in ("Transformer", *FOR_ANY_LAYER)]:
            notes.insert(0, f"the run was trained without {' and '.join(left)} of the model, and so is its export")
    same = "revision", "random_init", "architecture", "n_blocks", "blocks"
    if evidence is not None and any(getattr(evidence.model, name, "") != getattr(described, name) for name in same):
        of = _which(evidence.model) if evidence.model else "arrays"
        raise DataError(f"expected a finding for {_which(described)}, got one for {of}")
    layout = Layout(
        pooling=pooling,
        width=encoder.description.hidden_size,
        max_length=encoder.limit(max_length),
        prompt=prompt,
        n_extra=None if encoder.reader is None else encoder.reader.n_extra,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        normalize=normalize,
        dense=None if dense is None else Path(dense),
        int8=backends,
        dtype=kept_dtype(encoder, declared),
        weights=mean,
    )
    encoder.check_pooling(layout.pooling)
    if layout.prompt and layout.n_extra is not None:
        raise DataError(f"expected no prompt for images, got {layout.prompt!r}")
    with _open_source(recipe) as base:
        if base is not None:
            layout, more = _like_source(layout, base, encoder, at_end=at_end, options=asked, end_token=recipe.end_token)
            notes += more
        changes = _changes(layout, declared, source_length)
        text = partial(
            card,
            described,
            layer,
            layout,
            loader=auto_class(encoder.model.config).__name__,
            padding_invariant=encoder.padding_invariant,
            run=None if saved is None else saved[0],
            origin=None if saved is None else saved[1],
            runs=() if saved is None else runs_of_layer(saved[0]),
            finding=evidence,
            made=made,
            prompts=prompts,
            changes=changes,
        )
        difference, by_both, files = write_checkpoint(
            encoder, layer, out, layout=layout, card=text, overwrite=overwrite
        )
    if mean:
        notes.append(
            "only sentence-transformers with torch averages layers: other servers and backends take the last one"
        )
    if not encoder.padding_invariant:
        notes.append("padding changes the states: encode one text at a time, batch_size=1 in sentence-transformers")
    return ExportResult(
        path=str(out),
        model=described.name,
        revision=described.revision,
        layer=layer,
        n_blocks=described.n_blocks,
        parameters=encoder.description.parameters[layer],
        whole_parameters=(described.whole_parameters or described.parameters)[-1],
        pooling=layout.pooled,
        modules=(*([MEAN] if layer and mean else ()), *layout.modules),
        max_length=layout.max_length if layout.n_extra is None else None,
        prompt=layout.prompt,
        difference=difference,
        compared_with="source" if by_both else "layer",
        warnings=tuple(notes),
        dtype=layout.dtype,
        changes=changes,
        int8=files,
    )


def _changes(layout: Layout, declared: str, source_length: int | None) -> tuple[str, ...]:
    """Describe the differences of an export from its source."""
    changes = [] if layout.dtype == declared else [f"weights are in {layout.dtype} instead of {declared}"]
    if layout.n_extra is None and source_length not in (None, layout.max_length):
        changes.append(f"texts are truncated at {layout.max_length:,} tokens instead of {source_length:,}")
    if layout.weights:
        weighted = [f"{layer} ({weight:.2f})" for layer, weight in enumerate(layout.weights) if weight]
        changes.append(f"the weighted mean of layers {listed(weighted)}")
    if layout.source is not None and "pooling" in layout.changed:
        changes.append(f"{layout.pooled} pooling instead of {layout.source.pooled}")
    if layout.source is not None and "prompt" in layout.changed and layout.source.settings.get("prompts"):
        changes.append("the requested prompt instead of the model's")
    return tuple(changes)


def _like_source(
    layout: Layout, base: SentenceModel, encoder: Encoder, *, at_end: bool, options: Model, end_token: str
) -> tuple[Layout, list[str]]:
    """Return the layout of a sentence-transformers model with the requested changes, and notes.

    Modules that were trained on the full model's last layer are kept `at_end`, that is, at full depth.
    """
    name, kinds = encoder.description.name, base.kinds
    of_others = [
        row["type"] if re.fullmatch(r"\w[\w.-]*", row["path"]) else f"{row['type']} in {row['path']!r}"
        for row in base.rows[1:]
    ]
    check_modules([base.rows[0]["type"], *of_others], name=name)
    changed = [option for option in ("max_length", "prompt") if getattr(options, option) is not None]
    changed += ["layers"] * bool(layout.weights)
    if end_token:
        changed.append("end token")
    if encoder.description.random_init is not None:
        changed.append("weights")
    if options.pooling not in (None, base.pooled):
        changed.append("pooling")
    length = layout.max_length
    if options.max_length is None:
        configured, most = base.reading.get("max_seq_length") or encoder.max_length, position_limit(encoder.model)
        length = min((length for length in (configured, most) if length), default=NO_LIMIT)
        if most is not None and length < (configured or most):
            changed.append("max_length")
    fits = at_end and not {"pooling", "weights"} & {*changed}
    suited = ("Pooling",) if layout.weights else kinds if fits else FOR_ANY_LAYER
    modules = tuple(i for i, kind in enumerate(kinds) if i and kind in suited)
    layout = replace(layout, source=base, behind=modules, changed=tuple(changed), max_length=length)
    notes = []
    if left := [kind for i, kind in enumerate(kinds) if i and i not in modules]:
        why = "which is no part of a mean of layers" if layout.weights else "which was trained on the last layer"
        notes.append(f"{name} without its {' and '.join(left)}, {why}")
    if layout.pooled != layout.pooling:
        notes.append(f"{name} keeps its {layout.pooled} pooling; layerprobe's results use mean pooling")
    if theirs := other_similarity(base.settings, kinds):
        notes.append(f"{name} keeps {theirs}; layerprobe's results use cosines")
    return layout, notes


def _shares(weights: Shown | Mapping[int, float], encoder: Encoder) -> tuple[float, ...]:
    """Return the weights of layers 0 to the last one with a weight, sum 1."""
    check_extra("trainer", needed_by="a weighted mean of layers")
    asked, name = getattr(weights, "layer_weights", weights), encoder.description.name
    shares = np.zeros(encoder.n_layers)
    if encoder.reader is None and isinstance(asked, Mapping) and all(isinstance(one, Real) for one in asked.values()):
        shares[layer_numbers(asked, encoder.n_layers - 1, of=name)] = [*asked.values()]
    total = shares.sum()
    if not 0 < total < np.inf:
        raise DataError(
            f"expected weights of layers of a text model, such as {{3: 0.4, 6: 0.6}}, got {asked} for {name}"
        )
    if encoder.description.norm != "none":
        raise DataError(f"{name} has a final norm, which sentence-transformers gives none but the last layer of a mean")
    return tuple(np.trim_zeros(shares / total, "b").tolist())


@contextlib.contextmanager
def _open_source(recipe: Recipe) -> Iterator[SentenceModel | None]:
    """Yield the sentence-transformers model of a recipe, None without one; a loaded model is saved temporarily."""
    if recipe.source is None or isinstance(recipe.source, SentenceModel):
        yield recipe.source
        return
    with tempfile.TemporaryDirectory() as folder:
        recipe.source.save(folder, create_model_card=False)
        yield sentence_model(lambda file: path if (path := Path(folder, file)).is_file() else None)


def _finding_run(finding: Finding, layer: int | None) -> Path:
    """Return the directory of the finding's run at the layer to keep; DataError if another layer is requested."""
    weights = finding.weights
    if not weights.kept:
        raise DataError(
            "expected a model, as in export_model(model, out, layer=finding), got a Finding whose runs saved no "
            "weights: find with save_models=True"
        )
    if finding.on_floor:
        raise DataError(
            "expected a layer worth keeping, got a Finding in which no layer beats a trivial answer: pass the model's "
            "name and a layer to export it"
        )
    if layer is not None and one_layer(layer, finding.model.n_blocks, of=finding.model.name) != finding.best_layer:
        raise DataError(f"expected layer {finding.best_layer}, the one the search kept, got {layer}")
    return Path(weights.directory)


def _local_folder(model: ModelLike) -> Path | None:
    """Return the folder of a local model, None for others."""
    if isinstance(model, Resolved):
        name = model.source
    elif isinstance(model, Model) and isinstance(model.name, str):
        name = model.full_name
    elif isinstance(model, str | os.PathLike):
        name = os.fspath(model)
    else:
        return None
    folder = Path(split_name(name)[0])
    return folder if folder.is_dir() else None


def _resolved(model: ModelLike, out: Path) -> Resolved:
    """Return the checkpoint of a model without its own code; errors mention it if `out` looks like the model."""
    try:
        checkpoint = resolve(model)
    except ModelError as error:
        if "trust_remote_code" in str(error.__cause__):
            raise _needs_code(model.full_name if isinstance(model, Model) else str(model)) from error
        if (out / "config.json").is_file():
            raise ModelError(f"{error}; {out} contains a model: to export that one, put it first") from error
        raise
    if not getattr(known_class(checkpoint.config), "__module__", "").startswith("transformers."):
        raise _needs_code(checkpoint.label)
    # on the CPU in float32: the folder is for any device, and compared to 1e-5
    return checkpoint.with_options(device="cpu", dtype="float32", norm="final", attn="auto")


def _needs_code(name: str) -> ModelError:
    return ModelError(
        f"{name} needs its own code, which an export does not contain: expected an architecture that "
        "transformers supports"
    )


def _check_options_agree(run: FineTuningRun, origin: RunOrigin, layer: int | None, asked: Model) -> None:
    """Raise DataError if an option contradicts the run."""
    pairs = {
        "layer": (run.layer, None if layer is None else one_layer(layer, origin.model.n_blocks, of=origin.model.name)),
        "pooling": (run.protocol.pooling, asked.pooling),
        "max_length": (run.protocol.max_length, asked.max_length),
        "prompt": (origin.prompt, asked.prompt),
        "random_init": (origin.model.random_init, asked.random_init),
    }
    for name, (of_run, value) in pairs.items():
        if value is not None and value != of_run:
            flag = f"--{name.replace('_', '-')}"
            raise DataError(f"the run was fine-tuned with {flag} {of_run!r}: expected that or none, got {value!r}")


def _which(model: ModelDescription) -> str:
    blocks = f"all {model.n_blocks} blocks" if model.blocks is None else f"blocks {', '.join(map(str, model.blocks))}"
    return f"{model.name} at revision {model.revision} with {blocks}"
