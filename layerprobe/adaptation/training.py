"""Masked language modelling on a corpus, with the loop that pretraining has, too.

Knows a model with its head and a protocol; knows where a run is saved, nothing of what becomes of it.
Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layerprobe.adaptation.values import AdaptationMetrics, AdaptationProtocol
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.errors import TrainingError
from layerprobe.progress import Progress, silent
from layerprobe.training.corpus import Corpus, hold_out
from layerprobe.training.loop import Schedule, Trainer, steps_per_epoch
from layerprobe.training.loop import train as train_steps
from layerprobe.training.objective import MaskedLanguageModelling, Masking
from layerprobe.training.values import Measured
from layerprobe.training.workplace import Saved, Workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What training gave, beside the weights."""

    steps: int
    n_texts: int
    """Texts trained on."""
    n_held_out: int
    """Texts held out."""
    n_held_out_tokens: int
    """Masked tokens in them."""
    metrics: tuple[AdaptationMetrics, ...]
    seconds: float


def train(
    encoder: Encoder,
    head: MaskedLanguageModel,
    corpus: Corpus,
    protocol: AdaptationProtocol,
    *,
    seed: int,
    fingerprint: str,
    workplace: Workplace,
    saved: tuple[Saved, dict[str, Tensor]] | None = None,
    checkpoint_every: int = 50,
    evaluate_every: int | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Train the model under `head` in place.

    A run that goes on from a saved step gives the same weights as one that was never interrupted.

    Args:
        encoder: What the head is on: its tokenizer, device and precision.
        head: The model.
        corpus: The texts.
        protocol: How to train.
        seed: Split, order, masking and dropout.
        fingerprint: What the saved steps are marked with.
        workplace: Where steps are saved; the caller holds it.
        saved: The step to go on from.
        checkpoint_every: Steps from one saved step to the next.
        evaluate_every: Steps from one look at the held-out texts to the next; once an epoch by default.
        progress: Told the steps that are done.

    Raises:
        DataError: If there are too few texts.
        TrainingError: If the loss or its gradient is not finite.
        StoreError: If a step cannot be saved.
    """
    if encoder.autocast == torch.float16:
        raise TrainingError("expected float32 or bfloat16 to train in, got float16, whose small gradients vanish")
    run = trainer(encoder, head, corpus, protocol, seed=seed)
    train_steps(
        run,
        fingerprint=fingerprint,
        workplace=workplace,
        saved=saved,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        task="adapting",
        progress=progress,
    )
    return Outcome(
        steps=run.step,
        n_texts=len(run.rows),
        n_held_out=len(run.held_out),
        n_held_out_tokens=sum(len(question.masked.targets) for question in run.exam),
        metrics=tuple(_metrics(measured) for measured in run.measured),
        seconds=run.seconds,
    )


def trainer(
    encoder: Encoder, head: MaskedLanguageModel, corpus: Corpus, protocol: AdaptationProtocol, *, seed: int
) -> Trainer:
    """Return a run that has not begun.

    Raises:
        DataError: If there are too few texts.
    """
    tokenizer = encoder.tokenizer
    masking = Masking(
        mask_id=tokenizer.mask_token_id,
        # a model's vocabulary can be rounded up to words that no text has
        vocab_size=min(len(tokenizer), encoder.model.config.vocab_size),
        # with [UNK] among them, as in the data collator of transformers
        special_ids=tuple(tokenizer.all_special_ids),
        rate=protocol.masking_rate,
        random_share=protocol.random_share,
        kept_share=protocol.kept_share,
    )
    rows, held_out = hold_out(len(corpus), protocol.validation_share, seed=seed)
    whole = steps_per_epoch(len(rows), protocol.batch_size, protocol.accumulation) * protocol.epochs
    return Trainer(
        MaskedLanguageModelling(head, masking),
        corpus,
        Schedule(
            total_steps=whole if protocol.max_steps is None else min(whole, protocol.max_steps),
            batch_size=protocol.batch_size,
            accumulation=protocol.accumulation,
            learning_rate=protocol.learning_rate,
            warmup=protocol.warmup,
            weight_decay=protocol.weight_decay,
            max_grad_norm=protocol.max_grad_norm,
        ),
        rows=rows,
        held_out=held_out,
        seed=seed,
        device=encoder.device,
        precision=encoder.precision,
        same_length=not encoder.padding_invariant,
    )


def _metrics(measured: Measured) -> AdaptationMetrics:
    loss, accuracy = (measured.held_out[f"mlm_{name}"] for name in ("loss", "accuracy"))
    assert loss is not None  # the exam has masked tokens
    assert accuracy is not None
    return AdaptationMetrics(
        step=measured.step,
        train_loss=measured.train.get("mlm_loss"),
        held_out_loss=loss,
        held_out_accuracy=accuracy,
    )
