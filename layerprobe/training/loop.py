"""One plain loop that can be interrupted anywhere.

Knows an objective, an optimiser and batches; knows where a run is saved, nothing of what becomes of it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.encoders.batching import token_batches
from layerprobe.errors import DataError, TrainingError
from layerprobe.progress import Progress, silent
from layerprobe.training.corpus import Corpus, epoch_batches
from layerprobe.training.objective import Objective, Question, rates_of
from layerprobe.training.values import Measured
from layerprobe.training.workplace import Saved, Workplace

logger = logging.getLogger(__name__)

EVALUATION_BATCH_TOKENS = 4096
MODEL, OPTIMIZER, CHANCE = "model.", "optimizer.", "chance."


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How many steps of what size."""

    total_steps: int
    batch_size: int
    """Texts a forward pass."""
    accumulation: int
    """Forward passes a step."""
    learning_rate: float
    """Peak of AdamW's linear schedule."""
    warmup: float
    """Share of the steps with a rising learning rate."""
    weight_decay: float
    """On matrices only."""
    max_grad_norm: float
    """Gradients are clipped to this norm."""


class Trainer:
    """An objective, its optimiser, and how far they are.

    Args:
        objective: The models, on `device`; they are trained in place.
        corpus: The texts.
        schedule: How to train.
        rows: Numbers of the texts to train on.
        held_out: Numbers of the texts to measure on.
        seed: Order, masking, sampling and dropout.
        device: Where the models are.
        precision: Gives the context in which they compute.
        same_length: Whether held-out texts are never padded.
        fused: Whether the optimiser's step is one kernel; its rounding differs.

    Raises:
        DataError: If no token of the held-out texts is masked.
    """

    def __init__(
        self,
        objective: Objective,
        corpus: Corpus,
        schedule: Schedule,
        *,
        rows: NDArray[np.int64],
        held_out: NDArray[np.int64],
        seed: int,
        device: torch.device,
        precision: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        same_length: bool = False,
        fused: bool = False,
    ) -> None:
        self.objective, self.corpus, self.schedule, self.seed = objective, corpus, schedule, seed
        self.rows, self.held_out = rows, held_out
        self.device, self.precision = device, precision
        self.steps_per_epoch = steps_per_epoch(len(rows), schedule.batch_size, schedule.accumulation)
        self.parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        trained = list(self.parameters.values())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in trained if p.ndim > 1], "weight_decay": schedule.weight_decay},
                {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=schedule.learning_rate,
            fused=fused or None,
        )
        self.chance = torch.Generator().manual_seed(seed)
        self.sampling = torch.Generator(device).manual_seed(seed)
        self.step, self.n_tokens = 0, 0
        self.seconds, self.training_seconds = 0.0, 0.0
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.last_loss = math.nan
        self.measured: list[Measured] = []
        self.epoch, self.batches = -1, list[NDArray[np.int64]]()
        self.exam = self._make_exam(same_length=same_length)

    # ---- a step ------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take one step: every part's mean over its positions in all batches of the step, weighted and summed."""
        start = time.perf_counter()
        self.objective.train()
        questions = [self.ask(rows, self.chance) for rows in self._batches_of_step()]
        counts: defaultdict[str, int] = defaultdict(int)
        for question in questions:
            for part, n in self.objective.counts(question).items():
                counts[part] += n
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate * rate(self.step, self.schedule.total_steps, self.schedule.warmup)
        self.optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        for question in questions:
            losses = self.losses_of(question)
            if losses:
                self.weighted(losses, counts).backward()  # type: ignore[no-untyped-call]
            for part, loss in losses.items():
                sums[part] = sums.get(part, torch.zeros((), device=self.device)) + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.schedule.max_grad_norm)
        self.step += 1
        # one look at the device a step
        *found, length = torch.stack([*sums.values(), norm.to(self.device)]).tolist()
        self._check_finite(sum(found), length)
        self.optimizer.step()
        for part, loss in zip(sums, found, strict=True):
            self.totals[f"{part}.loss"] += loss
            self.totals[f"{part}.n"] += counts[part]
        self.last_loss = sum(
            self.objective.weights[part] * loss / max(1, counts[part]) for part, loss in zip(sums, found, strict=True)
        )
        self.n_tokens += sum(question.n_tokens for question in questions)
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.training_seconds += seconds

    def ask(self, rows: Any, chance: torch.Generator) -> Question:
        """Return the texts `rows` with some tokens masked, on the CPU."""
        return self.objective.masking.ask(*self.corpus.padded(rows), chance)

    def losses_of(self, question: Question) -> dict[str, Tensor]:
        """Return the summed loss of every part, none where no position carries loss: the mean of nothing is NaN."""
        if not any(self.objective.counts(question).values()):
            return {}
        with self.precision():
            answers = self.objective(question.to(self.device), self.sampling)
        return {part: answer.loss() for part, answer in answers.items()}

    def weighted(self, losses: dict[str, Tensor], counts: dict[str, int]) -> Tensor:
        """Return the loss of a step's batch: the summed losses of its parts, by weight and the step's positions."""
        parts = [self.objective.weights[part] * (loss / max(1, counts[part])) for part, loss in losses.items()]
        return torch.stack(parts).sum()

    def _check_finite(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"loss became {loss:g}" if not math.isfinite(loss) else f"gradient's norm became {norm:g}"
        raise TrainingError(
            f"the {what} at step {self.step} of {self.schedule.total_steps}: expected a finite one; lower the learning "
            f"rate (now {self.schedule.learning_rate:g}) or use float32"
        )

    def _batches_of_step(self) -> list[NDArray[np.int64]]:
        epoch, within = divmod(self.step, self.steps_per_epoch)
        if epoch != self.epoch:
            size, lengths = self.schedule.batch_size, self.corpus.lengths
            self.batches = epoch_batches(self.rows, lengths, batch_size=size, seed=self.seed, epoch=epoch)
            self.epoch = epoch
        first = within * self.schedule.accumulation
        return self.batches[first : first + self.schedule.accumulation]

    # ---- the held-out texts ------------------------------------------------------------------------------

    def _make_exam(self, *, same_length: bool) -> list[Question]:
        """Mask the held-out texts once, so that every measurement asks the same."""
        chance = torch.Generator().manual_seed(self.seed)
        lengths = self.corpus.lengths[self.held_out].tolist()
        batches = token_batches(lengths, budget=EVALUATION_BATCH_TOKENS, same_length=same_length)
        exam = [self.ask(self.held_out[rows], chance) for rows in batches]
        exam = [question for question in exam if len(question.masked.targets)]
        if not exam:
            raise DataError(
                f"none of the tokens of the {len(self.held_out)} held-out texts is masked: give more or longer texts, "
                "or hold out a larger share of them"
            )
        return exam

    @torch.inference_mode()
    def measure(self, *, before: bool = False) -> None:
        """Measure every part on the held-out texts; a generator's samples there are drawn from the seed."""
        start = time.perf_counter()
        self.objective.train(False)
        sampling = torch.Generator(self.device).manual_seed(self.seed)
        tallies: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for question in self.exam:
            with self.precision():
                answers = self.objective(question.to(self.device), sampling)
            for part, answer in answers.items():
                for name, value in {"loss": answer.loss(), **answer.tallies()}.items():
                    tallies[part][name] += value.item()
        if not all(math.isfinite(found["loss"]) for found in tallies.values()):
            losses = ", ".join(f"{found['loss']:g}" for found in tallies.values())
            raise TrainingError(f"the loss of the held-out texts is {losses} after step {self.step}: use float32")
        held_out: dict[str, float | None] = {}
        for part, found in tallies.items():
            held_out[f"{part}_loss"] = found["loss"] / found["n"]
            held_out |= {f"{part}_{name}": value for name, value in rates_of(found).items()}
        train = {} if before else {f"{part}_loss": loss for part, loss in self._mean_losses().items()}
        self.measured.append(Measured(step=self.step, train=train, held_out=held_out))
        self.totals.clear()
        self.seconds += time.perf_counter() - start
        shown = ", ".join(
            f"{name.replace('_', ' ')} {value:.4f}" for name, value in held_out.items() if value is not None
        )
        logger.info("step %d of %d: held-out %s", self.step, self.schedule.total_steps, shown)

    def _mean_losses(self) -> dict[str, float]:
        """Return the mean loss of every part since the last measurement."""
        parts = [name.removesuffix(".loss") for name in self.totals if name.endswith(".loss")]
        return {part: self.totals[f"{part}.loss"] / n for part in parts if (n := self.totals[f"{part}.n"])}

    # ---- to disk and back --------------------------------------------------------------------------------

    def saved(self, fingerprint: str) -> Saved:
        """Return where the run is, but for its tensors."""
        return Saved(
            fingerprint=fingerprint,
            step=self.step,
            n_tokens=self.n_tokens,
            seconds=self.seconds,
            training_seconds=self.training_seconds,
            totals=dict(self.totals),
            measured=tuple(self.measured),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimiser and state of chance; the learning rate follows from the step."""
        found = {MODEL + name: p.detach() for name, p in self.parameters.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            found |= {f"{OPTIMIZER}{number}.{name}": tensor for name, tensor in state.items()}
        found[f"{CHANCE}masking"] = self.chance.get_state()
        found[f"{CHANCE}sampling"] = self.sampling.get_state()
        found[f"{CHANCE}cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            found[f"{CHANCE}cuda"] = torch.cuda.get_rng_state(self.device)
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
        self.sampling.set_state(tensors[f"{CHANCE}sampling"])
        torch.set_rng_state(tensors[f"{CHANCE}cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors[f"{CHANCE}cuda"], self.device)
        self.step, self.n_tokens, self.measured = saved.step, saved.n_tokens, list(saved.measured)
        self.seconds, self.training_seconds = saved.seconds, saved.training_seconds
        self.totals = defaultdict(float, saved.totals)

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on a second, padding and measuring left out; 0 before the first step."""
        return self.n_tokens / self.training_seconds if self.training_seconds else 0.0


def train(
    run: Trainer,
    *,
    fingerprint: str,
    workplace: Workplace | None,
    saved: tuple[Saved, dict[str, Tensor]] | None = None,
    checkpoint_every: int = 50,
    evaluate_every: int | None = None,
    task: str = "training",
    show_loss: bool = False,
    progress: Progress = silent,
) -> None:
    """Take the steps of a run that are left.

    A run that goes on from a saved step gives the same weights as one that was never interrupted.

    Args:
        run: What is trained.
        fingerprint: What the saved steps are marked with.
        workplace: Where steps are saved; the caller holds it. Nothing is saved without it.
        saved: The step to go on from.
        checkpoint_every: Steps from one saved step to the next.
        evaluate_every: Steps from one look at the held-out texts to the next; once an epoch by default.
        task: What the progress is called.
        show_loss: Whether loss and speed are told with it.
        progress: Told the steps that are done.

    Raises:
        TrainingError: If the loss or its gradient is not finite.
        StoreError: If a step cannot be saved.
    """
    evaluate_every = evaluate_every or run.steps_per_epoch
    total = run.schedule.total_steps

    def tell() -> None:
        detail = f" loss {run.last_loss:.3f}, {run.tokens_per_second:,.0f} tokens/s" if show_loss else ""
        progress(task + detail, run.step, total)

    # dropout draws from the global generators: leave them as they were found
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        torch.manual_seed(run.seed)
        if saved is None:
            run.measure(before=True)
        else:
            run.restore(*saved)
            logger.info("going on from step %d of %d", run.step, total)
        last_saved = run.step
        progress(task, run.step, total)
        while run.step < total:
            run.advance()
            tell()
            if run.step % evaluate_every == 0 or run.step == total:
                run.measure()
            if workplace is not None and run.step - last_saved >= checkpoint_every and run.step < total:
                workplace.save(run.saved(fingerprint), run.tensors())
                last_saved = run.step
    run.objective.train(False)


def steps_per_epoch(n_texts: int, batch_size: int, accumulation: int) -> int:
    """Return the steps in which every text is seen once."""
    return math.ceil(math.ceil(n_texts / batch_size) / accumulation)


def rate(step: int, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a step, from 0: linear up, linear down to 0, and 0 from then on.

    Example:
        >>> [rate(step, 10, 0.2) for step in (0, 1, 2, 6, 12)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = round(warmup * total_steps)
    return step / rising if step < rising else max(0.0, (total_steps - step) / max(1, total_steps - rising))
