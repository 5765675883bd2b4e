"""Texts, a protocol and a seed -> a run that is ready to be trained. Knows sequences and models, no files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import ElectraModel

from layerprobe.encoders.batching import tokenize
from layerprobe.errors import DataError
from layerprobe.lab.pretraining.models import build_encoder, build_objective, masking_of
from layerprobe.lab.pretraining.objectives.registry import OBJECTIVES
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.modes import without_autocast
from layerprobe.training.corpus import hold_out, pack, tokenize_corpus
from layerprobe.training.loop import Trainer
from layerprobe.training.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Models on their device, and what trains them."""

    encoder: ElectraModel
    trainer: Trainer | None
    """None where nothing is trained."""
    tokenizer: Any
    n_texts: int
    """Sequences to train on."""
    n_held_out: int
    """Sequences held out."""
    n_tokens: int
    """Tokens of all sequences to train on."""
    warnings: tuple[str, ...]

    @property
    def objective(self) -> Objective | None:
        """None where nothing is trained."""
        return None if self.trainer is None else self.trainer.objective


def prepare(
    texts: Sequence[str],
    tokenizer: Any,
    protocol: PretrainingProtocol,
    *,
    endless: bool = False,
    seed: int,
    device: torch.device,
    autocast: torch.dtype | None,
) -> Run:
    """Return a run that has not begun.

    Two runs with one seed and corpus whose protocols differ in the objective begin with the same encoder and see the
    same batches in the same order with the same positions masked.

    The texts are distinct; where they are `endless`, as many as are needed, all requested sequences are held
    out. With `autocast` None the models compute in float32. The progress is called with the texts that are tokenised.
    """
    corpus = tokenize_corpus(partial(tokenize, tokenizer, max_length=protocol.max_length, token_types=False), texts)
    warnings = [f"{corpus.n_cut:,} texts were cut at {protocol.max_length} tokens"] if corpus.n_cut else []
    if protocol.packed:
        corpus = pack(corpus, max_length=protocol.max_length, n_leading=1)
    n_held_out = protocol.held_out if endless else max(1, min(protocol.held_out, len(corpus) // 10))
    rows, held_out = hold_out(len(corpus), n_held_out / max(1, len(corpus)), seed=seed)
    if len(rows) < protocol.batch_size:
        raise DataError(
            f"expected at least {protocol.batch_size} sequences to train on, a whole batch, got {len(rows)}: give more "
            "texts, or lower --batch-size"
        )
    encoder = build_encoder(protocol, vocab_size=len(tokenizer), pad_id=tokenizer.pad_token_id, seed=seed)
    trainer = None
    if OBJECTIVES[protocol.objective].builder is not None:
        objective = build_objective(encoder, protocol, masking_of(protocol, tokenizer), seed=seed).to(device)
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
            f"the generator is larger than the encoder that it trains ({generator.hidden_size} features a layer, not "
            f"{protocol.size.hidden_size}): the paper found a quarter to a half of its width best"
        )
    return Run(
        encoder=encoder,
        trainer=trainer,
        tokenizer=tokenizer,
        n_texts=len(rows),
        n_held_out=len(held_out),
        n_tokens=int(corpus.lengths[rows].sum()),
        warnings=tuple(warnings),
    )
