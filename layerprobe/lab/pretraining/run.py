"""Train an encoder on texts by an objective that masks tokens: a small one from scratch, or an existing one.

The latter is domain-adaptive pretraining. Both use one loop, `layerprobe.lab.pretraining.loop`, and one kind of folder.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130); Gururangan et al. 2020 (arXiv 2004.10964).
"""

import functools
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import ElectraModel, PreTrainedModel

from layerprobe.checks import check_seeds
from layerprobe.embedded import LANGUAGE_SEED, Language
from layerprobe.encoders.batching import TokenizedTexts, tokenize
from layerprobe.encoders.device import autocast_dtype, computed_on, resolve_device
from layerprobe.encoders.encoder import Encoder, save_checkpoint
from layerprobe.encoders.failures import quiet_transformers
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import load
from layerprobe.encoders.model import Model
from layerprobe.errors import DamagedStoreError, DataError
from layerprobe.files.atomic import inside, locked
from layerprobe.files.serialisation import digest
from layerprobe.lab.pretraining.loop import Begun, ModelFolder, Trainer, as_block, model_card, steps_per_epoch
from layerprobe.lab.pretraining.masking import (
    MaskedLanguageModelling,
    Masking,
    check_masked_lm,
    hold_out,
    pack,
    tokenize_corpus,
    with_masked_lm_head,
)
from layerprobe.lab.pretraining.models import (
    GENERATOR,
    build_encoder,
    build_objective,
    content_digest,
    count,
    make_masking,
    save_models,
    train_tokenizer,
    word_tokenizer,
)
from layerprobe.lab.pretraining.values import (
    LANGUAGE,
    OBJECTIVES,
    Adaptation,
    AdaptationProtocol,
    Pretraining,
    PretrainingProtocol,
)
from layerprobe.names import short_name
from layerprobe.rng import without_autocast
from layerprobe.store.store import Store
from layerprobe.tasks.values import TextFile
from layerprobe.versions import ADAPTATION_VERSION, PRETRAINING_TEXTS_VERSION, PRETRAINING_VERSION, __version__

logger = logging.getLogger(__name__)

RECORD = "pretraining.json"
# Default minimum between two evaluations: with fewer, evaluation takes longer than training.
FEWEST_STEPS = 50
SENTENCES_SEED = 1
# Most sentences of the language: longer trainings repeat them.
MOST_SENTENCES = 2_000_000

Texts = TextFile | Sequence[str] | Literal["language"]


def pretrain(
    out: str | Path,
    corpus: Texts,
    *,
    protocol: PretrainingProtocol | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    evaluate_every: int | None = None,
    checkpoint_every: int = 250,
    overwrite: bool = False,
) -> Pretraining:
    """Pretrain a small encoder, write it as a folder, and return its numbers.

    Runs with the same seed, corpus and size start with the same weights and see the same batches in
    the same order with the same tokens masked: only the objective differs. The folder is an ordinary checkpoint for
    any function that takes a model; a generator is in `generator/` in it. An interrupted run continues from its
    last saved step, in `OUT.pretraining` beside the folder, with the same weights; a finished one is loaded, not
    repeated.

    The corpus is "language", the embedded one, with as many sentences as the steps need; or texts, whose
    duplicates count once, and on which a WordPiece tokenizer is trained. The default protocol is masked language
    modelling of 8 blocks with 128 features. The seed is for weights, split, order, masking, sampling and dropout. The
    device is auto, cpu, cuda, cuda:1 or mps; the dtype float32, bfloat16 (autocast over float32 weights), or auto:
    bfloat16 on CUDA, float32 elsewhere. Held-out sequences are evaluated at regular steps, by default every twentieth
    of all, at least 50. With `overwrite`, a pretrained model at `out`, or another unfinished one, is replaced. The
    progress has the finished steps, the loss and the tokens per second.

    Source: Clark et al. 2020 (arXiv 2003.10555); Devlin et al. 2019 (arXiv 1810.04805).
    """
    check_seeds([seed])
    if dtype not in ("auto", "float32", "bfloat16"):
        raise DataError(f"expected dtype auto, float32 or bfloat16 to train in, got {dtype!r}")
    if dtype == "auto" and resolve_device(device).type != "cuda":
        dtype = "float32"
    protocol, options = protocol or PretrainingProtocol(), Model(device=device, dtype=dtype)
    file = corpus_texts(corpus, protocol)
    texts = tuple(dict.fromkeys(file.texts))
    texts_digest = digest(texts)
    of_texts = file.embedded or PRETRAINING_TEXTS_VERSION
    fingerprint = digest(
        [PRETRAINING_VERSION, computed_on(options.device, options.dtype), of_texts, texts_digest, protocol, seed]
    )

    def begin() -> Begun:
        if len(texts) < 2:
            raise DataError(f"expected at least two distinct texts, one of them to hold out, got {len(texts)}")
        tokenizer: Any
        warnings = [*file.notes, *file.warnings]
        if file.embedded:
            tokenizer = word_tokenizer(_language(), max_length=protocol.max_length)
        else:
            tokenizer = train_tokenizer(texts, vocab_size=protocol.vocab_size, max_length=protocol.max_length)
            if len(tokenizer) != protocol.vocab_size:
                kind = "contain no more" if len(tokenizer) < protocol.vocab_size else "have that many letters alone"
                warnings.append(
                    f"the vocabulary has {len(tokenizer):,} words, not {protocol.vocab_size:,}: the texts {kind}"
                )
            if copies := len(file.texts) - len(texts):
                warnings.append(f"{copies:,} duplicate texts were removed")
        where = resolve_device(options.device)
        encoder, run, prepared = prepare(
            texts,
            tokenizer,
            protocol,
            endless=file.embedded,
            seed=seed,
            device=where,
            autocast=autocast_dtype(options.dtype, where),
        )
        objective = None if run is None else run.objective

        def about() -> dict[str, Any]:
            trained: dict[str, Any] = {"metrics": (), "n_tokens": 0, "seconds": 0.0, "tokens_per_second": 0.0}
            if run is not None:
                trained = {name: getattr(run, name) for name in trained}
                trained["metrics"] = tuple(run.metrics)
            return {
                "corpus": file.name,
                "corpus_digest": texts_digest,
                "tokenizer_digest": content_digest(tokenizer),
                "vocab_size": len(tokenizer),
                "encoder_parameters": count(encoder),
                "trained_parameters": 0 if objective is None else count(objective),
                "computed_on": computed_on(options.device, options.dtype),
                **trained,
                **prepared,
                "warnings": (*warnings, *prepared["warnings"]),
            }

        return run, about, partial(save_models, objective, encoder, tokenizer)

    return PRETRAINED.make(
        out,
        begin,
        protocol=protocol,
        seed=seed,
        fingerprint=fingerprint,
        overwrite=overwrite,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every or max(FEWEST_STEPS, protocol.steps // 20),
        task="pretraining",
        show_loss=True,
    )


_language = functools.cache(partial(Language, seed=LANGUAGE_SEED))  # it takes a while to build


def corpus_texts(corpus: Texts, protocol: PretrainingProtocol) -> TextFile:
    """Return the texts of a corpus; for the embedded language as many as training reads."""
    if isinstance(corpus, TextFile):
        return corpus
    if not isinstance(corpus, str):
        return TextFile(name="texts", texts=tuple(corpus))
    if corpus != LANGUAGE:
        raise DataError(f'expected texts, a result of load_corpus, or "language", got the text {corpus[:60]!r}')
    read = protocol.steps * protocol.batch_size * protocol.accumulation
    # a sentence has 14 tokens on average
    packed = max(1, protocol.max_length // 12) if protocol.packed else 1
    n = min(MOST_SENTENCES, packed * (read + protocol.held_out) + packed * read // 8)
    sentences = _language().sentences(n, seed=SENTENCES_SEED)
    return TextFile(name=LANGUAGE, texts=tuple(sentences), embedded=True)


def prepare(
    texts: Sequence[str],
    tokenizer: Any,
    protocol: PretrainingProtocol,
    *,
    endless: bool = False,
    seed: int,
    device: torch.device,
    autocast: torch.dtype | None,
) -> tuple[ElectraModel, Trainer | None, dict[str, Any]]:
    """Tokenize texts and build the models, batches and optimiser for training.

    Two runs with the same seed and corpus whose protocols differ in the objective start with the same encoder and see
    the same batches in the same order with the same positions masked.

    The texts are distinct; if they are `endless`, as many as needed, all requested sequences are held
    out. With `autocast` None the models compute in float32. The progress has the number of tokenised texts.

    Returns:
        The encoder, on its device; its trainer, None if nothing is trained; and the `Pretraining` fields
        `n_texts`, `n_held_out` and `warnings`.
    """
    corpus = tokenize_corpus(partial(tokenize, tokenizer, max_length=protocol.max_length, token_types=False), texts)
    n_cut = corpus.n_truncated
    warnings = [f"{n_cut:,} texts were truncated at {protocol.max_length} tokens"] if n_cut else []
    if protocol.packed:
        corpus = pack(corpus, max_length=protocol.max_length, n_leading=1)
    n_held_out = protocol.held_out if endless else max(1, min(protocol.held_out, len(corpus) // 10))
    rows, held_out = hold_out(len(corpus), n_held_out / max(1, len(corpus)), seed=seed)
    if len(rows) < protocol.batch_size:
        raise DataError(
            f"expected at least {protocol.batch_size} sequences to train on, a full batch, got {len(rows)}: use more "
            "texts, or lower --batch-size"
        )
    encoder = build_encoder(protocol, vocab_size=len(tokenizer), pad_id=tokenizer.pad_token_id, seed=seed)
    trainer = None
    if OBJECTIVES[protocol.objective].builder is not None:
        objective = build_objective(encoder, protocol, make_masking(protocol, tokenizer), seed=seed).to(device)
        trainer = Trainer(
            objective,
            corpus,
            protocol,
            total_steps=protocol.steps,
            rows=rows,
            held_out=held_out,
            seed=seed,
            device=device,
            precision=without_autocast if autocast is None else partial(torch.autocast, device.type, dtype=autocast),
            fused=True,
        )
    generator = protocol.generator
    if generator is not None and generator.hidden_size > protocol.size.hidden_size:
        warnings.append(
            f"the generator is larger than its encoder ({generator.hidden_size} features per layer, not "
            f"{protocol.size.hidden_size}): the paper found a quarter to a half of the encoder's width best"
        )
    return encoder, trainer, {"n_texts": len(rows), "n_held_out": len(held_out), "warnings": tuple(warnings)}


def adapt(
    model: ModelLike,
    texts: TextFile | Sequence[str],
    out: str | Path,
    *,
    protocol: AdaptationProtocol | None = None,
    seed: int = 0,
    evaluate_every: int | None = None,
    checkpoint_every: int = 50,
    overwrite: bool = False,
) -> Adaptation:
    """Train the whole model by masked language modelling on texts, and write its encoder and its numbers to a folder.

    loss = mean over the masked tokens of -log p(original token)

    The folder is an ordinary checkpoint for any function that takes a model. An interrupted run continues
    from its last saved step, in `OUT.adapting` beside the folder, with the same weights; a finished one is
    loaded, not repeated.

    Duplicate texts count once. The seed is for split, order, masking, dropout and new weights of the head. The model's
    loading options apply: device, dtype, attention, code from the checkpoint. The held-out texts are
    evaluated at regular steps, by default once per epoch. With `overwrite`, an adapted model at `out`, or another
    unfinished one, is replaced. The progress has the finished steps.

    Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section on domain-adaptive pretraining.
    """
    protocol = protocol or AdaptationProtocol()
    check_seeds([seed])
    file = texts if isinstance(texts, TextFile) else TextFile(name="texts", texts=tuple(texts))
    distinct, checkpoint = tuple(dict.fromkeys(file.texts)), resolve(model)
    if checkpoint.asked.dtype == "float16":
        raise DataError("expected float32 or bfloat16 for training, got float16, where small gradients vanish")
    check_masked_lm(checkpoint)

    def begin() -> Begun:
        encoder = load(checkpoint)
        head, fresh = with_masked_lm_head(checkpoint, encoder, seed=seed)
        corpus = tokenize_corpus(partial(encoder.tokenize, max_length=protocol.max_length), distinct)
        run = trainer(encoder, head, corpus, protocol, seed=seed)
        warnings = [*file.notes, *file.warnings]
        if fresh:
            warnings.append(
                f"the checkpoint lacks {len(fresh)} weights of the head for masked language modelling (such as "
                f"{fresh[0]}): they start at random, so the loss before training says nothing about the encoder"
            )
        if copies := len(file.texts) - len(distinct):
            warnings.append(f"{copies:,} duplicate texts were removed")
        if n_cut := corpus.n_truncated:
            warnings.append(f"{n_cut:,} texts were truncated at {encoder.limit(protocol.max_length)} tokens")
        if not encoder.padding_invariant:
            warnings.append("padding changes the states of this architecture, but training batches were padded")

        def about() -> dict[str, Any]:
            return {
                "model": encoder.description,
                "texts": file.name,
                "n_texts": len(run.rows),
                "n_held_out": len(run.held_out),
                "n_held_out_tokens": sum(len(batch.targets) for batch in run.held_out_batches),
                "head": "fresh" if fresh else "own",
                "steps": run.step,
                "computed_on": checkpoint.computed_on,
                "metrics": tuple(run.metrics),
                "seconds": run.seconds,
                "warnings": tuple(warnings),
            }

        def save(folder: Path) -> None:
            with quiet_transformers():
                save_checkpoint(encoder.model, encoder.tokenizer_to_save(), folder, name=encoder.description.name)

        return run, about, save

    return ADAPTED.make(
        out,
        begin,
        protocol=protocol,
        seed=seed,
        fingerprint=_adapted_from(checkpoint, distinct, protocol, seed),
        overwrite=overwrite,
        source=Path(checkpoint.source) if Path(checkpoint.source).is_dir() else None,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        task="adapting",
    )


def trainer(
    encoder: Encoder, head: PreTrainedModel, corpus: TokenizedTexts, protocol: AdaptationProtocol, *, seed: int
) -> Trainer:
    """Return a trainer that has not started; it trains the model with `head` in place."""
    tokenizer = encoder.tokenizer
    # a model's vocabulary can be padded with words that no text has
    vocab_size = min(len(tokenizer), encoder.model.config.vocab_size)
    # with [UNK] among the special tokens, as in the data collator of transformers
    masking = Masking.of(protocol, tokenizer, vocab_size=vocab_size, special_ids=tokenizer.all_special_ids)
    rows, held_out = hold_out(len(corpus), protocol.validation_share, seed=seed)
    whole = steps_per_epoch(len(rows), protocol.batch_size, protocol.accumulation) * protocol.epochs
    return Trainer(
        MaskedLanguageModelling(head, masking),
        corpus,
        protocol,
        total_steps=whole if protocol.max_steps is None else min(whole, protocol.max_steps),
        rows=rows,
        held_out=held_out,
        seed=seed,
        device=encoder.device,
        precision=encoder.precision,
        same_length=not encoder.padding_invariant,
    )


def stored_adaptation(
    model: Resolved, texts: TextFile, *, protocol: AdaptationProtocol, seed: int = 0
) -> tuple[Path, Adaptation | None]:
    """Return the folder of an adapted model in the store, named by everything its weights depend on, and its numbers.

    The numbers are None if it is not adapted yet.
    """
    name = _adapted_from(model, tuple(dict.fromkeys(texts.texts)), protocol, seed)[:32]
    root = Store(model.asked.cache_dir).root
    path = inside(root, root / "adapted" / name)
    try:
        adaptation = ADAPTED.read(path)
    except DamagedStoreError as error:
        logger.warning("%s: adapting it again", error)
        return path, None
    return path, adaptation


def adapt_in_store(
    model: Resolved, texts: TextFile, *, protocol: AdaptationProtocol, seed: int = 0
) -> tuple[Path, Adaptation]:
    """Adapt a model into the store like `adapt`; load a finished one, and wait for another process that is making it.

    Arguments and errors are those of `adapt`; the options also set the store. The folder is an ordinary
    checkpoint.
    """
    path, stored = stored_adaptation(model, texts, protocol=protocol, seed=seed)
    if stored is not None:
        return path, stored
    with locked(path.parent, path.with_name(f"{path.name}.lock"), wait=True):
        path, stored = stored_adaptation(model, texts, protocol=protocol, seed=seed)
        # an existing folder is damaged
        return path, stored or adapt(model, texts, path, protocol=protocol, seed=seed, overwrite=True)


def _adapted_from(checkpoint: Resolved, texts: Sequence[str], protocol: AdaptationProtocol, seed: int) -> str:
    return digest([ADAPTATION_VERSION, checkpoint.identity, checkpoint.computed_on, digest(texts), protocol, seed])


def _pretraining_card(pretraining: Pretraining) -> str:
    name = pretraining.protocol.objective
    return model_card(
        [name],
        "# A small encoder for experiments",
        f"It was {OBJECTIVES[name].about}. `AutoModel` loads it, and layerprobe takes it as a model or a reference; a "
        f"generator, if any, is in `{GENERATOR}/`. Settings and numbers are in `{RECORD}`.",
        *([as_block(pretraining.table.text().splitlines())] if pretraining.metrics else []),
        f"Written by layerprobe {__version__}.",
    )


def _adaptation_card(adaptation: Adaptation) -> str:
    model = adaptation.model
    # nobody else can look up a local folder
    on_hub = not model.revision.startswith("sha256:") and model.random_init is None
    name = model.name if on_hub else short_name(model.name)
    return model_card(
        ("masked-language-modelling", "domain-adaptation"),
        "# An encoder adapted to a domain",
        f"{name} ({model.architecture}), revision {model.revision}, after continued masked-language-model pretraining; "
        f"it loads like that model. Its head is not in this folder. Settings and numbers are in `{ADAPTED.record}`.",
        as_block(adaptation.table.text().splitlines()),
        f"Written by layerprobe {__version__}.",
        base_model=model.name.partition("@")[0] if on_hub else None,
    )


PRETRAINED = ModelFolder(kind=Pretraining, record=RECORD, card=_pretraining_card, verb="pretrain")
ADAPTED = ModelFolder(kind=Adaptation, record="adaptation.json", card=_adaptation_card, verb="adapt")
