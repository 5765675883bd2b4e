"""Masked language modelling on a corpus: one plain loop that can be interrupted anywhere.

Knows a model, an optimiser and batches; knows where a run is saved, nothing of what becomes of it.
Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.adaptation.corpus import Corpus, epoch_batches, hold_out
from layerprobe.adaptation.workplace import Saved, Workplace
from layerprobe.encoders import Encoder, token_batches
from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.encoders.masking import MaskedBatch, mask_tokens
from layerprobe.errors import DataError, TrainingError
from layerprobe.progress import Progress, silent
from layerprobe.results import AdaptationMetrics, AdaptationProtocol

logger = logging.getLogger(__name__)

EVALUATION_BATCH_TOKENS = 4096
MODEL, OPTIMIZER, CHANCE = "model.", "optimizer.", "chance."


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A masked batch with its mask of padding, on the CPU."""

    masked: MaskedBatch
    attention_mask: Tensor


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
    run = Trainer(encoder, head, corpus, protocol, seed=seed)
    evaluate_every = evaluate_every or run.steps_per_epoch
    # dropout draws from the global generators: leave them as they were found
    with torch.random.fork_rng(devices=[encoder.device] if encoder.device.type == "cuda" else []):
        torch.manual_seed(seed)
        if saved is None:
            run.measure(before=True)
        else:
            run.restore(*saved)
            logger.info("going on from step %d of %d", run.step, run.total_steps)
        last_saved = run.step
        progress("adapting", run.step, run.total_steps)
        while run.step < run.total_steps:
            run.advance()
            progress("adapting", run.step, run.total_steps)
            if run.step % evaluate_every == 0 or run.step == run.total_steps:
                run.measure()
            if run.step - last_saved >= checkpoint_every and run.step < run.total_steps:
                workplace.save(run.saved(fingerprint), run.tensors())
                last_saved = run.step
    head.model.train(False)
    return Outcome(
        steps=run.step,
        n_texts=len(run.rows),
        n_held_out=len(run.held_out),
        n_held_out_tokens=sum(len(question.masked.targets) for question in run.exam),
        metrics=tuple(run.metrics),
        seconds=run.seconds,
    )


class Trainer:
    """A model, its optimiser, and how far they are."""

    def __init__(
        self,
        encoder: Encoder,
        head: MaskedLanguageModel,
        corpus: Corpus,
        protocol: AdaptationProtocol,
        *,
        seed: int,
    ) -> None:
        self.encoder, self.head, self.corpus, self.protocol, self.seed = encoder, head, corpus, protocol, seed
        tokenizer = encoder.tokenizer
        self.special_ids = torch.tensor(tokenizer.all_special_ids)
        # a model's vocabulary can be rounded up to words that no text has
        self.vocab_size = min(len(tokenizer), encoder.model.config.vocab_size)
        self.rows, self.held_out = hold_out(len(corpus), protocol.validation_share, seed=seed)
        self.batches_per_epoch = math.ceil(len(self.rows) / protocol.batch_size)
        self.steps_per_epoch = math.ceil(self.batches_per_epoch / protocol.accumulation)
        whole = self.steps_per_epoch * protocol.epochs
        self.total_steps = whole if protocol.max_steps is None else min(whole, protocol.max_steps)
        self.parameters = {name: p for name, p in head.model.named_parameters() if p.requires_grad}
        trained = list(self.parameters.values())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in trained if p.ndim > 1], "weight_decay": protocol.weight_decay},
                {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=protocol.learning_rate,
        )
        self.chance = torch.Generator().manual_seed(seed)
        self.step, self.seconds = 0, 0.0
        self.loss_sum, self.loss_tokens = 0.0, 0
        self.metrics: list[AdaptationMetrics] = []
        self.epoch, self.batches = -1, list[NDArray[np.int64]]()
        self.exam = self._make_exam()

    # ---- a step ------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take one step: the mean cross entropy over the masked tokens of all its batches."""
        start = time.perf_counter()
        self.head.model.train()
        questions = [self.ask(rows, self.chance) for rows in self._batches_of_step()]
        n_tokens = sum(len(question.masked.targets) for question in questions)
        for group in self.optimizer.param_groups:
            group["lr"] = self.protocol.learning_rate * rate(self.step, self.total_steps, self.protocol.warmup)
        self.optimizer.zero_grad()
        total = 0.0
        for question in questions:
            if len(question.masked.targets):  # the mean of nothing is NaN
                loss = self.loss_of(question)
                (loss / n_tokens).backward()  # type: ignore[no-untyped-call]
                total += loss.item()
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.protocol.max_grad_norm)
        self.step += 1
        if not math.isfinite(total) or not torch.isfinite(norm):
            what = f"loss became {total:g}" if not math.isfinite(total) else f"gradient's norm became {norm.item():g}"
            raise TrainingError(
                f"the {what} at step {self.step} of {self.total_steps}: expected a finite one; lower the learning "
                f"rate (now {self.protocol.learning_rate:g}) or use float32"
            )
        self.optimizer.step()
        self.loss_sum += total
        self.loss_tokens += n_tokens
        self.seconds += time.perf_counter() - start

    def ask(self, rows: Sequence[int] | NDArray[np.int64], chance: torch.Generator) -> Question:
        """Return the texts `rows` with some tokens masked; padding and special tokens never are."""
        ids, attention_mask = self.corpus.padded(rows)
        masked = mask_tokens(
            ids,
            torch.isin(ids, self.special_ids) | (attention_mask == 0),
            mask_id=self.encoder.tokenizer.mask_token_id,
            vocab_size=self.vocab_size,
            rng=chance,
            rate=self.protocol.masking_rate,
            random_share=self.protocol.random_share,
            kept_share=self.protocol.kept_share,
        )
        return Question(masked=masked, attention_mask=attention_mask)

    def answer(self, question: Question) -> Tensor:
        """Return the scores of all words at the masked positions, (position, word), in float32."""
        device = self.encoder.device
        batch = {
            "input_ids": question.masked.input_ids.to(device),
            "attention_mask": question.attention_mask.to(device),
        }
        with self.encoder.precision():
            return self.head.logits(batch, question.masked.selected.to(device)).float()

    def loss_of(self, question: Question) -> Tensor:
        """Return the summed cross entropy of the original tokens at the masked positions."""
        return F.cross_entropy(self.answer(question), question.masked.targets.to(self.encoder.device), reduction="sum")

    def _batches_of_step(self) -> list[NDArray[np.int64]]:
        epoch, within = divmod(self.step, self.steps_per_epoch)
        if epoch != self.epoch:
            size, lengths = self.protocol.batch_size, self.corpus.lengths
            self.batches = epoch_batches(self.rows, lengths, batch_size=size, seed=self.seed, epoch=epoch)
            self.epoch = epoch
        first = within * self.protocol.accumulation
        return self.batches[first : first + self.protocol.accumulation]

    # ---- the held-out texts ------------------------------------------------------------------------------

    def _make_exam(self) -> list[Question]:
        """Mask the held-out texts once, so that every measurement asks the same."""
        chance = torch.Generator().manual_seed(self.seed)
        lengths = self.corpus.lengths[self.held_out].tolist()
        batches = token_batches(lengths, budget=EVALUATION_BATCH_TOKENS, same_length=not self.encoder.padding_invariant)
        exam = [self.ask(self.held_out[rows], chance) for rows in batches]
        exam = [question for question in exam if len(question.masked.targets)]
        if not exam:
            raise DataError(
                f"none of the tokens of the {len(self.held_out)} held-out texts is masked: give more or longer texts, "
                "or hold out a larger share with --validation-share"
            )
        return exam

    @torch.inference_mode()
    def measure(self, *, before: bool = False) -> None:
        """Measure loss and accuracy on the held-out texts."""
        start = time.perf_counter()
        self.head.model.train(False)
        loss, hits, n_tokens = 0.0, 0, 0
        for question in self.exam:
            logits, targets = self.answer(question), question.masked.targets.to(self.encoder.device)
            loss += F.cross_entropy(logits, targets, reduction="sum").item()
            hits += int((logits.argmax(dim=1) == targets).sum().item())
            n_tokens += len(targets)
        if not math.isfinite(loss):
            raise TrainingError(f"the loss of the held-out texts is {loss:g} after step {self.step}: use float32")
        train_loss = None if before or not self.loss_tokens else self.loss_sum / self.loss_tokens
        self.metrics.append(
            AdaptationMetrics(
                step=self.step,
                train_loss=train_loss,
                held_out_loss=loss / n_tokens,
                held_out_accuracy=hits / n_tokens,
            )
        )
        self.loss_sum, self.loss_tokens = 0.0, 0
        self.seconds += time.perf_counter() - start
        logger.info(
            "step %d of %d: held-out loss %.4f, accuracy %.4f",
            self.step,
            self.total_steps,
            loss / n_tokens,
            hits / n_tokens,
        )

    # ---- to disk and back --------------------------------------------------------------------------------

    def saved(self, fingerprint: str) -> Saved:
        """Return where the run is, but for its tensors."""
        return Saved(
            fingerprint=fingerprint,
            step=self.step,
            seconds=self.seconds,
            loss_sum=self.loss_sum,
            loss_tokens=self.loss_tokens,
            metrics=tuple(self.metrics),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimiser and state of chance; the learning rate follows from the step."""
        found = {MODEL + name: p.detach() for name, p in self.parameters.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            found |= {f"{OPTIMIZER}{number}.{name}": tensor for name, tensor in state.items()}
        found[f"{CHANCE}masking"] = self.chance.get_state()
        found[f"{CHANCE}cpu"] = torch.get_rng_state()
        if self.encoder.device.type == "cuda":
            found[f"{CHANCE}cuda"] = torch.cuda.get_rng_state(self.encoder.device)
        return found

    @torch.no_grad()
    def restore(self, saved: Saved, tensors: dict[str, Tensor]) -> None:
        """Go back to a saved step."""
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[MODEL + name])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith(OPTIMIZER):
                number, _, field = name.removeprefix(OPTIMIZER).partition(".")
                state.setdefault(int(number), {})[field] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.chance.set_state(tensors[f"{CHANCE}masking"])
        torch.set_rng_state(tensors[f"{CHANCE}cpu"])
        if self.encoder.device.type == "cuda":
            torch.cuda.set_rng_state(tensors[f"{CHANCE}cuda"], self.encoder.device)
        self.step, self.seconds, self.metrics = saved.step, saved.seconds, list(saved.metrics)
        self.loss_sum, self.loss_tokens = saved.loss_sum, saved.loss_tokens


def rate(step: int, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a step, from 0: linear up, then linear down to 0.

    Example:
        >>> [rate(step, 10, 0.2) for step in (0, 1, 2, 6)]
        [0.0, 0.5, 1.0, 0.5]
    """
    rising = round(warmup * total_steps)
    return step / rising if step < rising else (total_steps - step) / max(1, total_steps - rising)
