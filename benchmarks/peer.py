"""The trainer of sentence-transformers, as the peer of fine-tuning: the same rows in the same batches."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.finetuning.values import Protocol

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def arguments_of(protocol: Protocol, n_steps: int) -> dict[str, Any]:
    """Return a protocol of ours as arguments of theirs, for so many steps."""
    return {
        "max_steps": n_steps,
        "per_device_train_batch_size": protocol.batch_size,
        "learning_rate": protocol.learning_rate,
        "weight_decay": protocol.weight_decay,
        "max_grad_norm": protocol.max_grad_norm,
        "warmup_steps": round(protocol.warmup * n_steps),
    }


def trained_by_peer(
    encoder: Encoder,
    layer: int,
    columns: Mapping[str, Sequence[Any]],
    loss_of: Callable[[SentenceTransformer], torch.nn.Module],
    tell: Callable[[float], None],
    *,
    max_length: int,
    unit: bool = False,
    **settings: Any,
) -> SentenceTransformer:
    """Train a truncated model, mean pooled, on rows in their order; return it.

    Args:
        encoder: Of which the first blocks are taken.
        layer: How many.
        columns: Of the training set.
        loss_of: Returns the loss for their model.
        tell: Gets the loss after every step.
        max_length: In tokens.
        unit: Whether embeddings are divided by their norms.
        settings: Of `SentenceTransformerTrainingArguments`.
    """
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    class InOrder(DefaultBatchSampler):
        """The rows as they come."""

        def __init__(self, dataset: Dataset, **settings: object) -> None:
            settings["generator"] = None
            super().__init__(torch.utils.data.SequentialSampler(dataset), **settings)

    class Step(TrainerCallback):
        """The end of a step, heard."""

        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: object
        ) -> None:
            tell(losses[-1])

    losses: list[float] = []
    on_cpu = encoder.device.type == "cpu"
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        TruncatedEncoder(encoder, layer).save(folder, encoder.tokenizer)
        transformer = Transformer(folder, max_seq_length=max_length)
        pooling = Pooling(encoder.description.hidden_size, pooling_mode="mean")
        model = SentenceTransformer(modules=[transformer, pooling, *[Normalize()] * unit], device=str(encoder.device))
        loss = loss_of(model)
        loss.register_forward_hook(lambda module, given, value: losses.append(value.item()))
        SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                batch_sampler=InOrder,
                use_cpu=on_cpu,
                dataloader_pin_memory=not on_cpu,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **settings,
            ),
            train_dataset=Dataset.from_dict(dict(columns)).with_format("torch"),
            loss=loss,
            callbacks=[Step()],
        ).train()
    return model
