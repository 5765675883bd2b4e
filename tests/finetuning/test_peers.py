"""Fine-tuning beside the trainer of sentence-transformers: the same loss at every step where nothing is dropped out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.finetuning.tmft import FineTuner
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.retrieval.loss import MultipleNegatives
from tests.finetuning.test_tmft import without_dropout
from tests.finetuning.test_whole_batch import items

PROTOCOL = Protocol(learning_rate=1e-3, batch_size=4)
N_STEPS = 5


def theirs(encoder: Encoder, columns: dict[str, list[str]], folder: Path) -> list[float]:
    """The loss of every step of their trainer on the truncated model."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    class InOrder(DefaultBatchSampler):
        def __init__(self, dataset: Dataset, **settings: object) -> None:
            settings["generator"] = None
            super().__init__(torch.utils.data.SequentialSampler(dataset), **settings)

    class Told(MultipleNegativesRankingLoss):
        def forward(self, *arguments: object, **settings: object) -> torch.Tensor:
            loss: torch.Tensor = super().forward(*arguments, **settings)  # type: ignore[arg-type]
            told.append(loss.item())
            return loss

    told: list[float] = []
    TruncatedEncoder(encoder, 2).save(folder, encoder.tokenizer)
    modules = [Transformer(str(folder), max_seq_length=PROTOCOL.max_length), Pooling(16, pooling_mode="mean")]
    model = SentenceTransformer(modules=modules, device="cpu")
    SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(folder),
            max_steps=N_STEPS,
            per_device_train_batch_size=PROTOCOL.batch_size,
            learning_rate=PROTOCOL.learning_rate,
            weight_decay=PROTOCOL.weight_decay,
            max_grad_norm=PROTOCOL.max_grad_norm,
            warmup_steps=1,
            batch_sampler=InOrder,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict(columns),
        loss=Told(model),
    ).train()
    return told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("negatives", [False, True])
def test_every_step_has_the_loss_of_sentence_transformers(encoder: Encoder, negatives: bool, tmp_path: Path) -> None:
    encoder, asked = without_dropout(encoder), items(negatives=negatives)
    rows = np.arange(N_STEPS * PROTOCOL.batch_size) % len(asked.examples)
    examples = [asked.examples[row] for row in rows]
    columns = {"anchor": [asked.queries[query] for query, *_ in examples]}
    for i, name in enumerate(("positive", "negative")[: 1 + negatives], 1):
        columns[name] = [asked.documents[example[i]] for example in examples]
    model = TruncatedEncoder(encoder, 2).train()
    tuner = FineTuner(
        encoder,
        model,
        Protocol(learning_rate=1e-3, batch_size=4, epochs=1, warmup=1 / N_STEPS),
        steps_per_epoch=N_STEPS,
        criteria=[MultipleNegatives(width=16, n_labels=0)],
    )
    prepared = MultipleNegatives.prepare(encoder, asked, max_length=PROTOCOL.max_length)
    ours = [tuner.update(prepared, step).item() for step in np.split(rows, N_STEPS)]
    assert abs(ours[-1] - ours[0]) > 1e-3
    np.testing.assert_allclose(theirs(encoder, columns, tmp_path), ours, rtol=2e-5)
