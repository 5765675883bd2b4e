"""One plain training loop that can be interrupted anywhere.

Knows an objective, an optimiser, batches and the location of saved runs, but not what becomes of them.
"""

import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.context import report
from layerprobe.encoders.batching import TokenizedTexts, collate, token_batches
from layerprobe.errors import DataError, TrainingError
from layerprobe.files.serialisation import from_dict
from layerprobe.rng import plain_torch, restore_rng, rng_states, seeded, without_autocast
from layerprobe.training.artifact import SavedStep, SavedSteps
from layerprobe.training.masking import MaskedBatch, Objective, epoch_batches, tally_rates
from layerprobe.training.values import StepMetrics

logger = logging.getLogger(__name__)

EVALUATION_BATCH_TOKENS = 4096
# Prefixes of the names of saved tensors.
MODEL, RNG = "model.", "rng."
# Attributes of a `Trainer` in a saved step.
COUNTED = ("step", "n_tokens", "seconds", "training_seconds", "totals")
_PREFIX = "optimizer."


def adamw(parameters: Sequence[nn.Parameter], protocol: Any, *, fused: bool) -> torch.optim.AdamW:
    """Return AdamW at the peak rate of a training protocol, with weight decay on matrices only.

    If `fused`, a step is one pass over the weights instead of a dozen: the same formula with other rounding.
    """
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": protocol.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=protocol.learning_rate, fused=fused or None)


def rate(step: int, *, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate after `step` steps: linear up, linear down to 0, then 0.

    Examples:
        >>> [rate(step, total_steps=10, warmup=0.2) for step in (0, 1, 2, 6, 12)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = round(warmup * total_steps)
    return step / rising if step < rising else max(0.0, (total_steps - step) / max(1, total_steps - rising))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments of an optimiser under names for saving."""
    states = optimizer.state_dict()["state"]
    return {f"{_PREFIX}{number}.{name}": tensor for number, state in states.items() for name, tensor in state.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the moments of an optimiser; its learning rates stay."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            number, _, field = name.removeprefix(_PREFIX).partition(".")
            states.setdefault(int(number), {})[field] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


class Trainer:
    """An objective, its optimiser, and their progress.

    The models are on the device and trained in place, by a protocol of adaptation or pretraining: its batches, schedule
    and optimiser. `rows` and `held_out` are numbers of texts; the seed is for order, masking, sampling and dropout;
    `precision` returns the context of the models' computations. With `same_length` held-out texts are never padded;
    with `fused` the optimiser's step is one kernel, with other rounding.
    """

    def __init__(
        self,
        objective: Objective,
        corpus: TokenizedTexts,
        protocol: Any,
        *,
        total_steps: int,
        rows: NDArray[np.int64],
        held_out: NDArray[np.int64],
        seed: int,
        device: torch.device,
        precision: Callable[[], contextlib.AbstractContextManager[Any]] = without_autocast,
        same_length: bool = False,
        fused: bool = False,
    ) -> None:
        self.objective, self.corpus, self.protocol, self.seed = objective, corpus, protocol, seed
        self.total_steps = total_steps
        self.rows, self.held_out, self.lengths = rows, held_out, np.diff(corpus.ends)
        self.device, self.precision = device, precision
        self.steps_per_epoch = steps_per_epoch(len(rows), protocol.batch_size, protocol.accumulation)
        self.parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self.optimizer = adamw(list(self.parameters.values()), protocol, fused=fused)
        self.masking_rng = torch.Generator().manual_seed(seed)
        self.sampling_rng = torch.Generator(device).manual_seed(seed)
        self.step, self.n_tokens = 0, 0
        self.seconds, self.training_seconds = 0.0, 0.0
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.last_loss = math.nan
        self.metrics: list[StepMetrics] = []
        self.epoch, self.batches = -1, list[NDArray[np.int64]]()
        self.held_out_batches = self._mask_held_out(same_length=same_length)

    # ---- a step ------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take one step: the weighted sum of every part's mean over its positions in all batches of the step."""
        start = time.perf_counter()
        self.objective.train()
        batches = [self.masked_batch(rows, self.masking_rng) for rows in self._batches_of_step()]
        counts: defaultdict[str, int] = defaultdict(int)
        for batch in batches:
            for part, n in self.objective.counts(batch).items():
                counts[part] += n
        share = rate(self.step, total_steps=self.total_steps, warmup=self.protocol.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = self.protocol.learning_rate * share
        self.optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        for batch in batches:
            losses = self.part_losses(batch)
            if losses:
                self.weighted(losses, counts).backward()  # type: ignore[no-untyped-call]
            for part, loss in losses.items():
                sums[part] = sums.get(part, torch.zeros((), device=self.device)) + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.protocol.max_grad_norm)
        self.step += 1
        # synchronise with the device once per step
        *summed, length = torch.stack([*sums.values(), norm.to(self.device)]).tolist()
        self._check_finite(sum(summed), length)
        self.optimizer.step()
        for part, loss in zip(sums, summed, strict=True):
            self.totals[f"{part}.loss"] += loss
            self.totals[f"{part}.n"] += counts[part]
        self.last_loss = sum(
            self.objective.weights[part] * loss / max(1, counts[part]) for part, loss in zip(sums, summed, strict=True)
        )
        self.n_tokens += sum(batch.n_tokens for batch in batches)
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.training_seconds += seconds

    def masked_batch(self, rows: Any, rng: torch.Generator) -> MaskedBatch:
        """Return the texts `rows` with some tokens masked, on the CPU."""
        batch = collate(self.corpus, rows)
        return self.objective.masking.mask(batch["input_ids"], batch["attention_mask"], rng)

    def part_losses(self, batch: MaskedBatch) -> dict[str, Tensor]:
        """Return the summed loss of every part, except parts without positions: their mean would be NaN."""
        if not any(self.objective.counts(batch).values()):
            return {}
        with self.precision():
            outputs = self.objective(batch.to(self.device), self.sampling_rng)
        return {part: sums["loss"] for part, sums in outputs.items()}

    def weighted(self, losses: dict[str, Tensor], counts: dict[str, int]) -> Tensor:
        """Return the loss of a batch: the summed losses of its parts, by weight and the step's positions."""
        parts = [self.objective.weights[part] * (loss / max(1, counts[part])) for part, loss in losses.items()]
        return torch.stack(parts).sum()

    def _check_finite(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"gradient's norm became {norm:g}" if math.isfinite(loss) else f"loss became {loss:g}"
        raise TrainingError(
            f"the {what} at step {self.step} of {self.total_steps}: expected a finite one; lower the learning "
            f"rate (now {self.protocol.learning_rate:g}) or use float32"
        )

    def _batches_of_step(self) -> list[NDArray[np.int64]]:
        epoch, within = divmod(self.step, self.steps_per_epoch)
        if epoch != self.epoch:
            size = self.protocol.batch_size
            self.batches = epoch_batches(self.rows, self.lengths, batch_size=size, seed=self.seed, epoch=epoch)
            self.epoch = epoch
        first = within * self.protocol.accumulation
        return self.batches[first : first + self.protocol.accumulation]

    # ---- the held-out set --------------------------------------------------------------------------------

    def _mask_held_out(self, *, same_length: bool) -> list[MaskedBatch]:
        """Mask the held-out texts once, so that every evaluation uses the same positions."""
        rng = torch.Generator().manual_seed(self.seed)
        lengths = self.lengths[self.held_out].tolist()
        batches = token_batches(lengths, budget=EVALUATION_BATCH_TOKENS, same_length=same_length)
        masked = [self.masked_batch(self.held_out[rows], rng) for rows in batches]
        masked = [batch for batch in masked if len(batch.targets)]
        if not masked:
            raise DataError(
                f"none of the tokens of the {len(self.held_out)} held-out texts is masked: use more or longer texts, "
                "or hold out a larger share of them"
            )
        return masked

    @torch.inference_mode()
    def evaluate(self, *, before: bool = False) -> None:
        """Evaluate every part on the held-out set; a generator's samples there are drawn with the seed."""
        start = time.perf_counter()
        self.objective.train(False)
        rng = torch.Generator(self.device).manual_seed(self.seed)
        tallies: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for batch in self.held_out_batches:
            with self.precision():
                outputs = self.objective(batch.to(self.device), rng)
            for part, sums in outputs.items():
                for name, value in sums.items():
                    tallies[part][name] += value.item()
        if not all(math.isfinite(summed["loss"]) for summed in tallies.values()):
            losses = ", ".join(f"{summed['loss']:g}" for summed in tallies.values())
            raise TrainingError(f"the loss of the held-out texts is {losses} after step {self.step}: use float32")
        held_out: dict[str, float | None] = {}
        for part, summed in tallies.items():
            held_out[f"{part}_loss"] = summed["loss"] / summed["n"]
            held_out |= {f"{part}_{name}": value for name, value in tally_rates(summed).items()}
        # the mean loss of every part since the last evaluation
        parts = [] if before else [name.removesuffix(".loss") for name in self.totals if name.endswith(".loss")]
        train = {f"{part}_loss": self.totals[f"{part}.loss"] / n for part in parts if (n := self.totals[f"{part}.n"])}
        self.metrics.append(StepMetrics(step=self.step, train=train, held_out=held_out))
        self.totals.clear()
        self.seconds += time.perf_counter() - start
        measured = {name.replace("_", " "): value for name, value in held_out.items() if value is not None}
        listed = ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
        logger.info("step %d of %d: held-out %s", self.step, self.total_steps, listed)

    # ---- saving and loading------------------------------------------------------------------------------

    def saved(self, fingerprint: str) -> SavedStep:
        """Return the state of the run without its tensors."""
        return {"fingerprint": fingerprint, **{name: getattr(self, name) for name in COUNTED}, "metrics": self.metrics}

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimiser and generator states; the learning rate follows from the step."""
        tensors = {MODEL + name: p.detach() for name, p in self.parameters.items()}
        tensors |= optimizer_tensors(self.optimizer)
        states = {"masking": self.masking_rng.get_state(), "sampling": self.sampling_rng.get_state()}
        return tensors | {RNG + name: state for name, state in {**states, **rng_states(self.device)}.items()}

    @torch.no_grad()
    def restore(self, saved: SavedStep, tensors: dict[str, Tensor]) -> None:
        """Go back to a saved step."""
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[MODEL + name])
        load_optimizer(self.optimizer, tensors)
        rngs = {name.removeprefix(RNG): tensor for name, tensor in tensors.items() if name.startswith(RNG)}
        self.masking_rng.set_state(rngs["masking"])
        self.sampling_rng.set_state(rngs["sampling"])
        restore_rng(rngs, self.device)
        for name in COUNTED:
            setattr(self, name, saved[name])
        self.totals = defaultdict(float, self.totals)
        self.metrics = list(from_dict(tuple[StepMetrics, ...], saved["metrics"]))

    @property
    def tokens_per_second(self) -> float:
        """Training speed, without padding and evaluation; 0 before the first step."""
        return self.n_tokens / self.training_seconds if self.training_seconds else 0.0


@plain_torch()
def train(
    run: Trainer,
    *,
    steps: SavedSteps[SavedStep] | None = None,
    checkpoint_every: int = 50,
    evaluate_every: int | None = None,
    task: str = "training",
    show_loss: bool = False,
) -> None:
    """Take the remaining steps of a run.

    A run that continues from a saved step gives the same weights as an uninterrupted one. It is saved in its
    directory, locked by the caller, and evaluated at regular steps; by default nowhere, and after every epoch. Finished
    steps are reported; with `show_loss` together with loss and speed.
    """
    evaluate_every = evaluate_every or run.steps_per_epoch
    total = run.total_steps
    with seeded(run.seed, run.device):
        if steps is None or steps.resumed is None:
            run.evaluate(before=True)
        else:
            run.restore(*steps.resumed)
            logger.info("continuing from step %d of %d", run.step, total)
        last_saved = run.step
        report(task, run.step, total)
        while run.step < total:
            run.advance()
            detail = f" loss {run.last_loss:.3f}, {run.tokens_per_second:,.0f} tokens/s" if show_loss else ""
            report(task + detail, run.step, total)
            if run.step % evaluate_every == 0 or run.step == total:
                run.evaluate()
            if steps is not None and run.step - last_saved >= checkpoint_every and run.step < total:
                steps.save(run.step, run.saved(steps.fingerprint), run.tensors())
                last_saved = run.step
    run.objective.train(False)


def steps_per_epoch(n_texts: int, batch_size: int, accumulation: int) -> int:
    """Return the number of steps in which every text is seen once."""
    return math.ceil(math.ceil(n_texts / batch_size) / accumulation)
