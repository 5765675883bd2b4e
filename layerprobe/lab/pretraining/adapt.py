"""A model and texts -> the same model after continued masked-language-model pretraining on them.

This is domain-adaptive pretraining. Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130); Gururangan et al. 2020
(arXiv 2004.10964).
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from layerprobe.checks import check_seeds
from layerprobe.encoders.encoder import Encoder, save_checkpoint
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import ModelLike, Resolved, quiet_transformers, resolve
from layerprobe.errors import DamagedStoreError, DataError, TrainingError
from layerprobe.files.atomic import inside, locked
from layerprobe.files.serialisation import digest, to_dict
from layerprobe.lab.pretraining.run import Begun, train_into
from layerprobe.lab.pretraining.values import Adaptation, AdaptationMetrics, AdaptationProtocol
from layerprobe.names import short_name
from layerprobe.results.estimate import Estimate
from layerprobe.store.store import Store
from layerprobe.tasks.values import TextFile
from layerprobe.training.artifact import ModelFolder, as_block, check_intervals, model_card
from layerprobe.training.corpus import Corpus, Masking, hold_out, tokenize_corpus
from layerprobe.training.loop import Trainer, seconds_a_step, steps_per_epoch
from layerprobe.training.objective import (
    MaskedLanguageModel,
    MaskedLanguageModelling,
    check_masked_lm,
    with_masked_lm_head,
)
from layerprobe.training.values import StepMetrics
from layerprobe.versions import ADAPTATION_VERSION, __version__

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 50


def adapt(
    model: ModelLike,
    texts: TextFile | Sequence[str],
    out: str | Path,
    *,
    protocol: AdaptationProtocol | None = None,
    seed: int = 0,
    evaluate_every: int | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    overwrite: bool = False,
) -> Adaptation:
    """Train the whole model by masked language modelling on texts, and write its encoder and the numbers as a folder.

    loss = mean over the masked tokens of -log p(original token)

    The folder is an ordinary checkpoint: any function that takes a model takes it. An interrupted run goes on
    where it was last saved, in `OUT.adapting` next to the folder, and gives the same weights; a finished one is
    read, not repeated.

    Copies of texts count once. The seed is that of split, order, masking, dropout and fresh weights of the head. Of the
    options those say how to load: device, dtype, attention, code of the checkpoint's own. The held-out texts are
    evaluated every so many steps, an epoch by default. With `overwrite`, an adapted model at `out`, or an unfinished
    other one, is replaced. The progress is called with the steps that are done.

    Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section on domain-adaptive pretraining.
    """
    protocol = protocol or AdaptationProtocol()
    check_intervals(checkpoint_every, evaluate_every)
    file, distinct, checkpoint = _checked(model, texts, seed)

    def begin() -> Begun:
        encoder, head, corpus, run = _begun(checkpoint, distinct, protocol, seed)

        def about() -> dict[str, Any]:
            return {
                "model": encoder.description,
                "texts": file.name,
                "n_texts": len(run.rows),
                "n_held_out": len(run.held_out),
                "n_held_out_tokens": sum(len(batch.targets) for batch in run.held_out_batches),
                "head": "fresh" if head.fresh else "own",
                "steps": run.step,
                "computed_on": checkpoint.computed_on,
                "metrics": tuple(map(_metrics_of, run.metrics)),
                "seconds": run.seconds,
                "warnings": (
                    *file.notes,
                    *file.warnings,
                    *_warnings(encoder, head, protocol, n_copies=len(file.texts) - len(distinct), n_cut=corpus.n_cut),
                ),
            }

        return run, about, partial(save_encoder, encoder)

    return train_into(
        FOLDER,
        out,
        begin,
        protocol=protocol,
        seed=seed,
        fingerprint=_fingerprint(checkpoint, distinct, protocol, seed),
        overwrite=overwrite,
        source=Path(checkpoint.source) if Path(checkpoint.source).is_dir() else None,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        task="adapting",
    )


def plan_adaptation(
    model: ModelLike, texts: TextFile | Sequence[str], *, protocol: AdaptationProtocol | None = None, seed: int = 0
) -> Estimate:
    """Estimate the steps and the time of `adapt` with these arguments; nothing is written."""
    protocol = protocol or AdaptationProtocol()
    _, distinct, checkpoint = _checked(model, texts, seed)
    *_, run = _begun(checkpoint, distinct, protocol, seed)
    steps, n_texts, n_held_out = run.total_steps, len(run.rows), len(run.held_out)
    return Estimate(
        title=f"Adapting {short_name(checkpoint.name)} by {steps:,} steps on {n_texts:,} texts, {n_held_out:,} more "
        "held out,",
        seconds=steps * seconds_a_step(run),
        computed_on=checkpoint.computed_on,
        numbers={
            "model": checkpoint.name,
            "protocol": protocol,
            "n_texts": n_texts,
            "n_held_out": n_held_out,
            "steps": steps,
        },
    )


def _checked(
    model: ModelLike, texts: TextFile | Sequence[str], seed: int
) -> tuple[TextFile, tuple[str, ...], Resolved]:
    """Return all texts, the distinct ones and the resolved model; wrong arguments raise before any training."""
    check_seeds([seed])
    file = texts if isinstance(texts, TextFile) else TextFile(name="texts", texts=tuple(texts))
    checkpoint = resolve(model)
    if checkpoint.asked.dtype == "float16":
        raise DataError("expected float32 or bfloat16 to train in, got float16, whose small gradients vanish")
    check_masked_lm(checkpoint)
    return file, tuple(dict.fromkeys(file.texts)), checkpoint


def _begun(
    checkpoint: Resolved, texts: Sequence[str], protocol: AdaptationProtocol, seed: int
) -> tuple[Encoder, MaskedLanguageModel, Corpus, Trainer]:
    """Return the loaded model, its head, the texts as tokens and what trains the model on them."""
    encoder = load(checkpoint)
    head = with_masked_lm_head(checkpoint, encoder, seed=seed)
    corpus = tokenize_corpus(partial(encoder.tokenize, max_length=protocol.max_length), texts)
    return encoder, head, corpus, trainer(encoder, head, corpus, protocol, seed=seed)


def trainer(
    encoder: Encoder, head: MaskedLanguageModel, corpus: Corpus, protocol: AdaptationProtocol, *, seed: int
) -> Trainer:
    """Return a trainer that has not started; it trains the model under `head` in place."""
    if encoder.autocast == torch.float16:
        raise TrainingError("expected float32 or bfloat16 to train in, got float16, whose small gradients vanish")
    tokenizer = encoder.tokenizer
    # a model's vocabulary can be rounded up to words that no text has
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


def _metrics_of(step: StepMetrics) -> AdaptationMetrics:
    loss, accuracy = (step.held_out[f"mlm_{name}"] for name in ("loss", "accuracy"))
    assert loss is not None  # the held-out set has masked tokens
    assert accuracy is not None
    return AdaptationMetrics(
        step=step.step, train_loss=step.train.get("mlm_loss"), held_out_loss=loss, held_out_accuracy=accuracy
    )


def stored_adaptation(
    model: Resolved, texts: TextFile, *, protocol: AdaptationProtocol, seed: int = 0
) -> tuple[Path, Adaptation | None]:
    """Return the folder of an adapted model in the store, named by all that its weights depend on, and its numbers.

    These are None where it is still to be adapted.
    """
    name = _fingerprint(model, tuple(dict.fromkeys(texts.texts)), protocol, seed)[:32]
    root = Store(model.asked.cache_dir).root
    path = inside(root, root / "adapted" / name)
    try:
        adaptation = FOLDER.read(path)
        if adaptation is not None and adaptation.fingerprint[:32] != name:
            raise DamagedStoreError(f"{path} holds another adapted model, {adaptation.fingerprint[:32]}")
    except DamagedStoreError as error:
        logger.warning("%s: it is adapted again", error)
        return path, None
    return path, adaptation


def adapt_in_store(
    model: Resolved, texts: TextFile, *, protocol: AdaptationProtocol, seed: int = 0
) -> tuple[Path, Adaptation]:
    """Adapt a model into the store as `adapt` does; loads a finished one, and waits for another process that makes it.

    Arguments and errors are those of `adapt`; `options` says where the store is, too. The folder is an ordinary
    checkpoint.
    """
    path, stored = stored_adaptation(model, texts, protocol=protocol, seed=seed)
    if stored is not None:
        return path, stored
    with locked(path.parent, path.with_name(f"{path.name}.lock"), wait=True):
        path, stored = stored_adaptation(model, texts, protocol=protocol, seed=seed)
        # what is there now is not as it was written
        return path, stored or adapt(model, texts, path, protocol=protocol, seed=seed, overwrite=True)


def _fingerprint(checkpoint: Resolved, texts: Sequence[str], protocol: AdaptationProtocol, seed: int) -> str:
    return digest([ADAPTATION_VERSION, checkpoint.identity, checkpoint.computed_on, digest(texts), protocol, seed])


def _warnings(
    encoder: Encoder, head: MaskedLanguageModel, protocol: AdaptationProtocol, *, n_copies: int, n_cut: int
) -> tuple[str, ...]:
    warnings = []
    if head.fresh:
        warnings.append(
            f"the checkpoint lacks {len(head.fresh)} weights of the head for masked language modelling (such as "
            f"{head.fresh[0]}): they began at random, so the loss before says nothing of the encoder"
        )
    if n_copies:
        warnings.append(f"{n_copies:,} copies of texts were left out")
    if n_cut:
        warnings.append(f"{n_cut:,} texts were cut at {encoder.limit(protocol.max_length)} tokens")
    if not encoder.padding_invariant:
        warnings.append("padding changes the states of this architecture, and batches were padded in training")
    return tuple(warnings)


def card(adaptation: Adaptation) -> str:
    """Return the model card."""
    model = adaptation.model
    on_hub = not model.revision.startswith("sha256:") and model.random_init is None
    name = short_name(model.name)
    about = {
        "model": f"{model.name if on_hub else name} ({model.architecture}), revision {model.revision}",
        "texts": f"{adaptation.n_texts:,} to train on, {adaptation.n_held_out:,} held out",
        "steps": f"{adaptation.steps:,} on {adaptation.computed_on}",
        "head": f"{adaptation.head}; not in this folder, which holds the encoder alone",
        "seed": str(adaptation.seed),
        **{key.replace("_", " "): str(value) for key, value in to_dict(adaptation.protocol).items()},
    }
    return model_card(
        ("masked-language-modelling", "domain-adaptation"),
        "# An encoder adapted to a domain",
        "The model below after continued masked-language-model pretraining on other texts; loaded as that model is.",
        as_block(f"{key:<17} {value}" for key, value in about.items()),
        "Masked tokens of texts that were held out, before, during and after:",
        as_block(adaptation.table.text().splitlines()),
        f"Written by layerprobe {__version__}.",
        # a local folder is no model that anyone else could look up
        base_model=model.name.partition("@")[0] if on_hub else None,
    )


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write configuration, weights and tokenizer to an existing folder."""
    with quiet_transformers():
        save_checkpoint(encoder.model, encoder.tokenizer_to_save(), folder, name=encoder.description.name)


FOLDER = ModelFolder(
    kind=Adaptation,
    record="adaptation.json",
    card=card,
    what="adapted model",
    suffix=".adapting",
    doing="adapts a model",
    differs="was adapted from another one, to other texts or with other settings",
)
