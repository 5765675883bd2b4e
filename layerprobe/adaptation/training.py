"""Masked language modelling on a corpus, with the loop that pretraining has, too.

Knows a model with its head and a protocol, no folders.
Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

from __future__ import annotations

import torch

from layerprobe.adaptation.values import AdaptationMetrics, AdaptationProtocol
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.errors import TrainingError
from layerprobe.training.corpus import Corpus, hold_out
from layerprobe.training.loop import Schedule, Trainer, steps_per_epoch
from layerprobe.training.masking import Masking
from layerprobe.training.objective import MaskedLanguageModelling
from layerprobe.training.values import StepMetrics


def trainer(
    encoder: Encoder, head: MaskedLanguageModel, corpus: Corpus, protocol: AdaptationProtocol, *, seed: int
) -> Trainer:
    """Return a run that has not begun; it trains the model under `head` in place.

    Raises:
        DataError: If there are too few texts.
        TrainingError: If the encoder computes in float16.
    """
    if encoder.autocast == torch.float16:
        raise TrainingError("expected float32 or bfloat16 to train in, got float16, whose small gradients vanish")
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
        Schedule.of(protocol, whole if protocol.max_steps is None else min(whole, protocol.max_steps)),
        rows=rows,
        held_out=held_out,
        seed=seed,
        device=encoder.device,
        precision=encoder.precision,
        same_length=not encoder.padding_invariant,
    )


def metrics_of(step: StepMetrics) -> AdaptationMetrics:
    """Return the metrics of a step without the names of the objective's parts."""
    loss, accuracy = (step.held_out[f"mlm_{name}"] for name in ("loss", "accuracy"))
    assert loss is not None  # the held-out set has masked tokens
    assert accuracy is not None
    return AdaptationMetrics(
        step=step.step,
        train_loss=step.train.get("mlm_loss"),
        held_out_loss=loss,
        held_out_accuracy=accuracy,
    )
