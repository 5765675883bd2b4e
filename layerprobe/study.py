"""The pipeline, in the order a reader tells it: extract, compare, predict, confirm.

Each stage is one function; what was done before is read from the store instead of done again.
"""

from __future__ import annotations

import itertools
import logging
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe._version import __version__
from layerprobe.encoders import (
    Checkpoint,
    Encoder,
    TokenizedTexts,
    count_blocks,
    find_checkpoint,
    load_encoder,
    resolve_device,
)
from layerprobe.encoders.loading import autocast_dtype
from layerprobe.errors import DamagedStoreError, DataError, MisalignedSamplesError
from layerprobe.extraction import Diagnosis, embed_layers, examine
from layerprobe.finetuning import RunFolder, check_level, confirmation, fine_tune_layers, layers_to_confirm, outcomes
from layerprobe.names import short_names
from layerprobe.prediction import plateau_rule
from layerprobe.progress import Progress, part_of, silent
from layerprobe.results import (
    Alignment,
    CKAMap,
    Comparison,
    Confirmation,
    DropPrediction,
    Estimator,
    FineTuningRun,
    Kernel,
    LayerOutcome,
    LayerScores,
    ModelDescription,
    Pooling,
    Protocol,
    Provenance,
    SentencePairs,
    STSTask,
    Study,
    check_attn,
    digest,
    from_json,
    to_dict,
    to_json,
)
from layerprobe.similarity import cka_curve, cka_map, cosine_scores, pearson, spearman
from layerprobe.store import ShardWriter, Store, StoredEmbeddings, StoreKey, texts_digest

logger = logging.getLogger(__name__)

# Counts what similarity results depend on beyond their key; raise it when the numbers change.
SIMILARITY_VERSION = 1
PAPER_SEEDS = (0, 1, 2, 3, 4)
DEFAULT_LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How models are loaded and texts are embedded."""

    pooling: Pooling = "mean"
    """mean, cls, max or last: how token states become one embedding."""
    max_length: int | None = None
    """Tokens a text at most; the model's own limit, at most 512, by default."""
    prompt: str = ""
    """Put before every text."""
    dtype: str = "float32"
    """float32, bfloat16, float16, or auto: bfloat16 where the hardware has it."""
    norm: str = "final"
    """final or raw: whether pre-norm models get their final norm at every layer."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    attn: str = "auto"
    """auto, or an attention implementation of transformers."""
    batch_tokens: int | None = None
    """Tokens a batch, padding included."""
    trust_remote_code: bool = False
    """Run model code that comes with a checkpoint."""
    cache_dir: Path | None = None
    """Where the store is; LAYERPROBE_CACHE or the user's cache folder by default."""

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise DataError(f"expected pooling by one of {', '.join(get_args(Pooling))}, got {self.pooling!r}")
        check_attn(self.attn)
        if self.max_length is not None and self.max_length < 2:
            raise DataError(f"expected room for at least two tokens a text, got max_length={self.max_length}")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise DataError(f"expected at least one token a batch, got batch_tokens={self.batch_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """The pooled embeddings of every layer for a list of distinct texts, on disk."""

    model: ModelDescription
    pooling: Pooling
    texts: tuple[str, ...]
    """The distinct texts, one a row."""
    stored: StoredEmbeddings
    store: Store
    """Where they are kept."""
    fingerprint: str
    """Names everything the numbers depend on."""
    warnings: tuple[str, ...]
    """What the user should know about them."""
    _row: dict[str, int] = field(repr=False)

    @property
    def n_layers(self) -> int:
        """Blocks and the embedding output."""
        return self.stored.n_layers

    def layer(self, layer: int) -> NDArray[np.float32]:
        """Return one layer, (text, feature), read-only."""
        return self.stored.layer(layer)

    def rows(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of every text.

        Raises:
            MisalignedSamplesError: If a text was not embedded.
        """
        try:
            return np.array([self._row[text] for text in texts])
        except KeyError as error:
            raise MisalignedSamplesError(
                f"the text {error.args[0][:60]!r} is not among the {len(self.texts)} embedded ones: extract it first"
            ) from None


def found(model: str | Checkpoint, random_init: int | None, options: Options) -> Checkpoint:
    """Return the checkpoint of `model`, found once and passed on: a branch of the hub may move meanwhile.

    Raises:
        ModelError: If the model or its tokenizer cannot be had.
    """
    if isinstance(model, Checkpoint):
        return model
    return find_checkpoint(model, random_init=random_init, trust_remote_code=options.trust_remote_code)


# ---- extract ---------------------------------------------------------------------------------------------


def extract(
    model: str | Checkpoint,
    texts: Sequence[str],
    *,
    random_init: int | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> Embeddings:
    """Return the pooled embeddings of every layer, from the store or from one forward pass.

    Args:
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        texts: The texts; repeated ones are embedded once.
        random_init: Seed of fresh random weights instead of the trained ones.
        options: How to load and embed.
        progress: Told the tokens that are done.

    Raises:
        DataError: If there are no texts, or an empty one.
        ModelError: If the model cannot be had or truncated.
        StoreError: If the store cannot be written.
    """
    options = options or Options()
    distinct = tuple(dict.fromkeys(texts))
    if not distinct:
        raise DataError("expected texts to embed, got none")
    if "" in distinct:
        raise DataError("expected texts with words in them, got an empty one: drop it")
    checkpoint = found(model, random_init, options)
    key = _store_key(checkpoint, distinct, options)
    store = Store(options.cache_dir)
    stored = _open(store, key)
    if stored is None:
        stored = _embed_and_store(store, key, _load(checkpoint, options), distinct, options, progress)
    return Embeddings(
        # the user's own name for the model: a moved folder has the same fingerprint
        model=from_json(ModelDescription, to_json({**stored.description["model"], "name": checkpoint.label})),
        pooling=options.pooling,
        texts=distinct,
        stored=stored,
        store=store,
        fingerprint=key.fingerprint,
        warnings=tuple(f"{warning} for {checkpoint.label}" for warning in stored.description["warnings"]),
        _row={text: i for i, text in enumerate(distinct)},
    )


def _open(store: Store, key: StoreKey) -> StoredEmbeddings | None:
    try:
        return store.open(key)
    except DamagedStoreError:
        return None  # the writer names what is damaged and redoes it


def _load(checkpoint: Checkpoint, options: Options) -> Encoder:
    return load_encoder(checkpoint, device=options.device, dtype=options.dtype, norm=options.norm, attn=options.attn)


def _store_key(checkpoint: Checkpoint, texts: Sequence[str], options: Options) -> StoreKey:
    return StoreKey(
        # a folder is known by its content, wherever it lies
        model="" if checkpoint.revision.startswith("sha256:") else checkpoint.source,
        **checkpoint.identity,
        pooling=options.pooling,
        max_length=options.max_length or 0,
        dtype=_dtype_name(options),
        norm=options.norm,
        prompt=options.prompt,
        texts_digest=texts_digest(texts),
    )


def _dtype_name(options: Options) -> str:
    return str(autocast_dtype(options.dtype, resolve_device(options.device)) or "float32").removeprefix("torch.")


def _embed_and_store(
    store: Store, key: StoreKey, encoder: Encoder, texts: tuple[str, ...], options: Options, progress: Progress
) -> StoredEmbeddings:
    """Embed shard by shard; the next shard is tokenised and the last one written meanwhile."""
    model = encoder.description
    description = {"model": to_dict(model), "warnings": _warnings(encoder, texts, options)}
    with (
        store.writer(
            key, texts=texts, n_layers=model.n_layers, width=model.hidden_size, description=description
        ) as writer,
        ThreadPoolExecutor(1) as background,
    ):
        _fill(writer, encoder, texts, options, background, progress)
        return writer.finish()


def _fill(
    writer: ShardWriter,
    encoder: Encoder,
    texts: tuple[str, ...],
    options: Options,
    background: ThreadPoolExecutor,
    progress: Progress,
) -> None:
    pending = list(writer.pending)
    n_pending = sum(stop - start for _, start, stop in pending)

    def tokenized(number: int) -> Future[TokenizedTexts]:
        _, start, stop = pending[number]
        return background.submit(_tokenize, encoder, texts[start:stop], options)

    upcoming = tokenized(0) if pending else None
    written: Future[None] | None = None
    done = 0
    for number, (index, start, stop) in enumerate(pending):
        assert upcoming is not None
        tokens = upcoming.result()
        upcoming = tokenized(number + 1) if number + 1 < len(pending) else None
        report = part_of(progress, start=done, share=stop - start, whole=n_pending)
        layers = embed_layers(
            encoder, tokens, pooling=options.pooling, batch_tokens=options.batch_tokens, progress=report
        )
        if written is not None:
            written.result()
        written = background.submit(writer.write, index, layers)
        done += stop - start
    if written is not None:
        written.result()


def _tokenize(encoder: Encoder, texts: Sequence[str], options: Options) -> TokenizedTexts:
    return encoder.tokenize([options.prompt + text for text in texts], max_length=options.max_length)


def _warnings(encoder: Encoder, texts: Sequence[str], options: Options) -> list[str]:
    """Say in plain words what was cut or slowed down; the model is named later, it can have moved."""
    found = []
    # a token is at least a byte or so: only texts as long as that can have been cut
    limit = encoder.limit(options.max_length)
    long = [text for text in texts if len(options.prompt) + len(text.encode("utf-8", "replace")) >= limit // 2]
    n_cut = _tokenize(encoder, long, options).n_truncated if long else 0
    if n_cut:
        found.append(f"{n_cut} of {len(texts)} texts were cut at {limit} tokens")
    if not encoder.padding_invariant:
        found.append("padding would change the states: texts were batched by equal length")
    return found


# ---- compare ---------------------------------------------------------------------------------------------


def compare(
    model: Embeddings,
    reference: Embeddings,
    *,
    kernel: Kernel = "linear",
    estimator: Estimator = "debiased",
    bandwidth_multiplier: float = 1.0,
    alignment: Alignment | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Return CKA between all layers of two models on the texts that both embedded.

    Args:
        model: What `extract` gave for the model.
        reference: What it gave for the reference, with the same texts.
        kernel: linear or rbf.
        estimator: debiased or biased.
        bandwidth_multiplier: rbf: sigma in units of the root of the median squared distance.
        alignment: same-index, relative-depth or best-match; same-index by default, or relative-depth where
            the depths differ.
        progress: Told the layers that are done.

    Raises:
        MisalignedSamplesError: If the texts are not the same.
        DegenerateLayerError: If a layer has no similarity: constant, or fewer than four texts.
    """
    if model.texts != reference.texts:
        raise MisalignedSamplesError(
            f"{model.model.name} embedded {len(model.texts)} texts and {reference.model.name} {len(reference.texts)} "
            "others: extract both with the same texts"
        )
    if alignment is None:
        alignment = "same-index" if model.n_layers == reference.n_layers else "relative-depth"
    key = digest(
        [SIMILARITY_VERSION, model.fingerprint, reference.fingerprint, kernel, estimator, bandwidth_multiplier]
    )
    cka = _stored_map(model.store, key)
    if cka is None:
        layers_read = itertools.count(1)

        def layers(embeddings: Embeddings) -> Iterator[NDArray[np.float32]]:
            for layer in range(embeddings.n_layers):
                yield embeddings.layer(layer)
                progress("comparing", next(layers_read), model.n_layers + reference.n_layers)

        cka = cka_map(
            layers(model),
            layers(reference),
            kernel=kernel,
            estimator=estimator,
            bandwidth_multiplier=bandwidth_multiplier,
            model_name=model.model.name,
            reference_name=reference.model.name,
        )
        model.store.save_result("cka", key, to_json(cka))
    return Comparison(
        model=model.model,
        reference=reference.model,
        texts_digest=texts_digest(model.texts),
        pooling=model.pooling,
        cka=cka,
        curve=cka_curve(cka, alignment=alignment),
    )


def _stored_map(store: Store, key: str) -> CKAMap | None:
    text = store.load_result("cka", key)
    try:
        return None if text is None else from_json(CKAMap, text)
    except DataError as error:
        logger.warning("the CKA map %s in the store is damaged (%s): it is made again", key, error)
        return None


def zero_shot(embeddings: Embeddings, pairs: SentencePairs, *, split: str = "test") -> LayerScores:
    """Return how well the cosine of the pretrained embeddings ranks sentence pairs, layer by layer.

    Raises:
        MisalignedSamplesError: If a sentence was not embedded.
        DataError: If all pairs have one cosine at a layer, or one gold score.
    """
    first, second = embeddings.rows(pairs.first), embeddings.rows(pairs.second)
    gold = np.array(pairs.scores)
    scores = []
    for layer in range(embeddings.n_layers):
        values = embeddings.layer(layer)
        try:
            cosine = cosine_scores(values[first], values[second])
            scores.append((100 * spearman(cosine, gold), 100 * pearson(cosine, gold)))
        except DataError as error:
            raise DataError(f"layer {layer} of {embeddings.model.name} cannot be scored: {error}") from error
    return LayerScores(split=split, spearman=tuple(s for s, _ in scores), pearson=tuple(p for _, p in scores))


# ---- predict ---------------------------------------------------------------------------------------------


def predict(comparison: Comparison, *, zero_shot_validation: LayerScores | None = None) -> DropPrediction:
    """Say which layers will drop after fine-tuning, and which layer to keep.

    Args:
        comparison: The model against an MLM reference.
        zero_shot_validation: Where labels are at hand, the scores that choose the best zero-shot layer; a
            baseline beside the prediction, not part of it.

    Raises:
        DataError: If the model has fewer than three blocks.
    """
    other = {} if zero_shot_validation is None else {"best zero-shot layer": zero_shot_validation.best_layer}
    model, reference = short_names(comparison.model.name, comparison.reference.name)
    return plateau_rule(
        comparison.curve,
        model=model,
        reference=reference,
        other_baselines=other,
    )


# Zero-shot scores contradict a prediction when a flagged layer is ahead of the recommended one by this much, x 100.
CONTRADICTION = 5.0


def cautions(
    comparison: Comparison, prediction: DropPrediction, labelled: LayerScores | None = None
) -> tuple[str, ...]:
    """Return, in plain words, what speaks against taking a predicted drop at its word.

    Args:
        comparison: The two models.
        prediction: What was predicted.
        labelled: Zero-shot scores of the model, where there are labels.
    """
    said = []
    if comparison.model == comparison.reference:
        said.append("the model was compared with itself: expected another model as the reference, such as BERT")
    if prediction.drops and comparison.reference.random_init is not None:
        said.append(
            "the reference has random weights: a decline of CKA against it shows how far training moved a layer, "
            "not that the layer serves sentence embeddings worse"
        )
    if prediction.drops and labelled is not None:
        kept, best = labelled.spearman[prediction.recommended_layer], labelled.best_layer
        if best in prediction.drop_layers and labelled.spearman[best] > kept + CONTRADICTION:
            said.append(
                f"the labels disagree: untrained, the flagged layer {best} scores {labelled.spearman[best]:.1f} and "
                f"the recommended layer {prediction.recommended_layer} {kept:.1f} ({labelled.split} Spearman x 100)"
            )
    return tuple(said)


# ---- confirm ---------------------------------------------------------------------------------------------


def finetune(
    model: str | Checkpoint,
    layers: Sequence[int],
    task: STSTask,
    *,
    seeds: Sequence[int] = PAPER_SEEDS,
    protocol: Protocol | None = None,
    random_init: int | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> list[FineTuningRun]:
    """Fine-tune the model truncated at each layer, once a seed; finished runs are read, not repeated.

    Args:
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        layers: Blocks kept, 0 .. n_blocks.
        task: Sentence pairs.
        seeds: One run each.
        protocol: The paper's by default.
        random_init: Seed of fresh random weights instead of the trained ones.
        options: How to load, and the prompt; pooling and length are the protocol's.
        progress: Told the share of the work that is done.

    Raises:
        ModelError: If the model cannot be had.
        DataError: If the model has no such layer, or there are no layers or seeds.
        TrainingError: If a run fails.
        StoreError: If a result cannot be written.
    """
    options = options or Options()
    protocol = _agreed(protocol, options)
    _check_seeds(seeds)
    checkpoint = found(model, random_init, options)
    if not layers:
        raise DataError(f"expected layers of {checkpoint.label} to fine-tune, got none")
    _check_layers(checkpoint, layers)
    task = _prompted(task, options.prompt)
    return fine_tune_layers(
        lambda: _load(checkpoint, options),
        layers,
        task,
        seeds=seeds,
        protocol=protocol,
        folder=RunFolder.of(
            Store(options.cache_dir).root, checkpoint, task, protocol, computed_on=_computed_on(options)
        ),
        progress=progress,
    )


def _agreed(protocol: Protocol | None, options: Options) -> Protocol:
    """Return the protocol, the paper's by default; extraction and fine-tuning must pool alike."""
    protocol = protocol or Protocol(pooling=options.pooling)
    if protocol.pooling != options.pooling:
        raise DataError(
            f"expected one way of pooling, got {options.pooling} in the options and {protocol.pooling} in the protocol"
        )
    return protocol


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or not all(0 <= seed < 2**63 for seed in seeds):
        raise DataError(f"expected seeds from 0 to 2^63 - 1, at least one, got {list(seeds)}")


def _check_layers(checkpoint: Checkpoint, layers: Sequence[int]) -> None:
    n_blocks = count_blocks(checkpoint.config)
    wrong = [str(layer) for layer in layers if not 0 <= layer <= n_blocks]
    if wrong:
        raise DataError(f"expected layers from 0 to {n_blocks} of {checkpoint.label}, got {', '.join(wrong)}")


def _computed_on(options: Options) -> str:
    """Return what the numbers of fine-tuning depend on beside the model: dropout is another on another device."""
    return f"{resolve_device(options.device).type} {_dtype_name(options)}"


def _prompted(task: STSTask, prompt: str) -> STSTask:
    """Return the task with the prompt before every sentence, as extraction has it."""

    def pairs(split: SentencePairs) -> SentencePairs:
        first, second = (tuple(prompt + text for text in texts) for texts in (split.first, split.second))
        return replace(split, first=first, second=second)

    if not prompt:
        return task
    return replace(task, train=pairs(task.train), validation=pairs(task.validation), test=pairs(task.test))


def confirm(
    model: str | Checkpoint,
    prediction: DropPrediction,
    task: STSTask,
    *,
    layers: Sequence[int] = (),
    seeds: Sequence[int] = PAPER_SEEDS,
    protocol: Protocol | None = None,
    level: float = DEFAULT_LEVEL,
    random_init: int | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> Confirmation:
    """Fine-tune at the flagged, the recommended and the last layer, and say what that shows.

    Args:
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        prediction: What `predict` gave for it.
        task: Sentence pairs.
        layers: Further layers to fine-tune.
        seeds: One run each; with a single one the verdict is undecided.
        protocol: The paper's by default.
        level: Confidence level of the intervals.
        random_init: Seed of fresh random weights instead of the trained ones.
        options: How to load.
        progress: Told the share of the work that is done.

    Raises:
        DataError: If a layer does not exist.
        TrainingError: If a run fails.
    """
    check_level(level)
    options = options or Options()
    checkpoint = found(model, random_init, options)
    n_blocks = count_blocks(checkpoint.config)
    wanted = sorted({*layers, *layers_to_confirm(prediction, n_blocks)})
    runs = finetune(
        checkpoint,
        wanted,
        task,
        seeds=seeds,
        protocol=protocol,
        options=options,
        progress=progress,
    )
    return confirmation(prediction, runs, n_blocks, level=level)


# ---- the whole -------------------------------------------------------------------------------------------


def run(
    model: str | Checkpoint,
    *,
    reference: str | Checkpoint,
    task: STSTask,
    fine_tuning: bool = True,
    layers: Sequence[int] = (),
    reference_layers: Sequence[int] = (),
    seeds: Sequence[int] = PAPER_SEEDS,
    protocol: Protocol | None = None,
    level: float = DEFAULT_LEVEL,
    kernel: Kernel = "linear",
    estimator: Estimator = "debiased",
    bandwidth_multiplier: float = 1.0,
    alignment: Alignment | None = None,
    random_init: int | None = None,
    reference_random_init: int | None = None,
    options: Options | None = None,
    command: str = "layerprobe.run",
    progress: Progress = silent,
) -> Study:
    """Extract, compare, predict and confirm; what was done before is not done again.

    Args:
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        reference: The same of a model that was pretrained by masked language modelling.
        task: Sentence pairs; models are compared on the texts of its test split.
        fine_tuning: False stops at the prediction.
        layers: Layers to fine-tune beside those that decide.
        reference_layers: Layers of the reference to fine-tune, for the contrast.
        seeds: One fine-tuning run each.
        protocol: The paper's by default.
        level: Confidence level of the intervals.
        kernel: linear or rbf.
        estimator: debiased or biased.
        bandwidth_multiplier: rbf: sigma in units of the root of the median squared distance.
        alignment: same-index, relative-depth or best-match.
        random_init: Seed of fresh random weights for the model.
        reference_random_init: The same for the reference.
        options: How to load and embed.
        command: How this study was asked for; kept in its provenance.
        progress: Told what is being done, and how much of it.

    Raises:
        LayerProbeError: If any stage cannot be done; see the stages.
    """
    options = options or Options()
    protocol = _agreed(protocol, options)
    check_level(level)
    _check_seeds(seeds)
    checkpoint, base_checkpoint = found(model, random_init, options), found(reference, reference_random_init, options)
    _check_layers(checkpoint, layers)
    _check_layers(base_checkpoint, reference_layers)
    texts = task.test.texts
    tested = extract(checkpoint, texts, options=options, progress=progress)
    base = extract(base_checkpoint, texts, options=options, progress=progress)
    validated = extract(checkpoint, task.validation.texts, options=options, progress=progress)
    comparison = compare(
        tested,
        base,
        kernel=kernel,
        estimator=estimator,
        bandwidth_multiplier=bandwidth_multiplier,
        alignment=alignment,
        progress=progress,
    )
    labelled = zero_shot(validated, task.validation, split="validation")
    prediction = predict(comparison, zero_shot_validation=labelled)
    confirmed: Confirmation | None = None
    contrast: tuple[LayerOutcome, ...] = ()
    if fine_tuning:
        confirmed = confirm(
            checkpoint,
            prediction,
            task,
            layers=layers,
            seeds=seeds,
            protocol=protocol,
            level=level,
            options=options,
            progress=progress,
        )
        if reference_layers:
            runs = finetune(
                base_checkpoint,
                reference_layers,
                task,
                seeds=seeds,
                protocol=protocol,
                options=options,
                progress=progress,
            )
            contrast = outcomes(runs, level=level)
    return Study(
        comparison=comparison,
        prediction=prediction,
        provenance=Provenance(
            layerprobe=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            settings=_settings(options, level=level),
            task=task.name,
            task_digest=task.digest,
            texts_digest=comparison.texts_digest,
            n_texts=len(texts),
            seeds=tuple(dict.fromkeys(seeds)) if fine_tuning else (),
            device=str(resolve_device(options.device)),
            versions=versions(),
            notes=task.notes,
            warnings=(
                *task.warnings,
                *tested.warnings,
                *base.warnings,
                *validated.warnings,
                *cautions(comparison, prediction, labelled),
            ),
        ),
        zero_shot=zero_shot(tested, task.test),
        reference_zero_shot=zero_shot(base, task.test),
        protocol=protocol if fine_tuning else None,
        confirmation=confirmed,
        reference_outcomes=contrast,
    )


def _settings(options: Options, *, level: float) -> dict[str, str]:
    """Return the settings that differ from their defaults, without where things are kept."""
    changed = {
        f.name: str(getattr(options, f.name))
        for f in fields(options)
        if f.name != "cache_dir" and getattr(options, f.name) != f.default
    }
    return changed | ({} if level == DEFAULT_LEVEL else {"level": str(level)})


def doctor(model: str | Checkpoint, *, random_init: int | None = None, options: Options | None = None) -> Diagnosis:
    """Load a model and check that what layerprobe relies on holds for it.

    Raises:
        ModelError: If the model cannot be had or its architecture is refused.
    """
    options = options or Options()
    checkpoint = found(model, random_init, options)
    return examine(_load(checkpoint, options))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the numbers depend on."""
    libraries = ("torch", "transformers", "tokenizers", "numpy", "scipy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in libraries}}
