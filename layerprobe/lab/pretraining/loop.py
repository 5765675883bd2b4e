"""One plain training loop that can be interrupted anywhere.

Knows an objective, an optimiser and batches, and the folder of a trained model with its record and card.
"""

import contextlib
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from huggingface_hub import ModelCardData
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.context import report
from layerprobe.encoders.batching import TokenizedTexts, collate, token_batches
from layerprobe.errors import DamagedStoreError, DataError, TrainingError, option
from layerprobe.files.atomic import SUMS, folder_errors, folder_problems, new_folder, read_kept
from layerprobe.files.inputs import from_home
from layerprobe.files.serialisation import from_dict, sealed
from layerprobe.lab.pretraining.masking import MaskedBatch, Objective, epoch_batches, tally_rates
from layerprobe.lab.pretraining.values import StepMetrics
from layerprobe.rng import plain_torch, restore_rng, rng_states, seeded, without_autocast
from layerprobe.store.manifest import is_fingerprint
from layerprobe.training import SavedSteps, adamw, load_optimizer, optimizer_tensors, rate
from layerprobe.versions import __version__, versions

logger = logging.getLogger(__name__)

EVALUATION_BATCH_TOKENS = 4096
# Prefixes of the names of saved tensors.
MODEL, RNG = "model.", "rng."
# Attributes of a `Trainer` in a saved step.
COUNTED = ("step", "n_tokens", "seconds", "training_seconds", "totals")

SavedStep = dict[str, Any]
"""State of a run when it was saved, without tensors: its `fingerprint`, `step`, and its trainer's counters."""
R = TypeVar("R")
"""The numbers of a trained model, including its `fingerprint`: the sha256 of everything the weights depend on."""
Begun = tuple["Trainer | None", Callable[[], dict[str, Any]], Callable[[Path], None]]
"""A training that has not started, None if nothing is trained; a function that returns the fields of its record after
training; and one that writes the model to a folder."""


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


# ---- the folder of a trained model -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(Generic[R]):
    """A kind of folder with a trained model: an ordinary checkpoint, its numbers and a card."""

    kind: type[R]
    """Type of the numbers."""
    record: str
    """Name of the file with the numbers."""
    card: Callable[[R], str]
    """Returns the model card: YAML front matter and Markdown."""
    verb: str
    """Verb for the training, such as adapt: the model is adapted, and the directory of an unfinished run ends in
    .adapting."""

    @property
    def what(self) -> str:
        """Name of the model in messages."""
        return f"{self.verb}ed model"

    def make(
        self,
        out: str | Path,
        begin: Callable[[], Begun],
        *,
        protocol: Any,
        seed: int,
        fingerprint: str,
        overwrite: bool,
        source: Path | None = None,
        **how: Any,
    ) -> R:
        """Train a model into a folder, or return the numbers of an existing one; one process at a time.

        An interrupted training continues. With `overwrite`, such a model there, or another unfinished one, is
        replaced; nothing else ever is, and never `source`, the local model to train. `how` has the arguments of
        `train`: how often the run is saved, evaluated and reported.
        """
        target, _ = self.check(out, overwrite=overwrite, source=source)
        steps = self.steps(target, fingerprint=fingerprint)
        busy = f"another process {self.verb}s a model for {target}: wait until it is done, or choose another folder"
        with steps.locked(busy):
            target, finished = self.check(out, overwrite=overwrite, source=source)
            if finished is not None and not overwrite:
                if getattr(finished, "fingerprint", None) != fingerprint:
                    raise DataError(
                        f"{out} has another {self.what}: its model, texts or settings differ; choose another folder, "
                        f"or replace it with {option('overwrite', True)}"
                    )
                return finished
            _go_on(steps, overwrite=overwrite)
            trainer, about, save_model = begin()
            if trainer is not None:
                train(trainer, steps=steps, **how)
            fields: dict[str, Any] = {"protocol": protocol, "seed": seed, "fingerprint": fingerprint, **about()}
            fields["versions"] = {"layerprobe": __version__, **versions()}
            fields["created"] = datetime.now(UTC).isoformat(timespec="seconds")
            record = self.kind(**fields)
            advice = f"choose another folder for the {self.what}"
            with folder_errors(target, advice=advice), new_folder(target, replace=overwrite) as folder:
                save_model(folder)
                # folders of the store are named by content, those of users freely
                name = f"{target.name}/{self.record}" if is_fingerprint(target.name) else ""
                (folder / self.record).write_bytes(sealed(record, name=name))
                (folder / "README.md").write_bytes(self.card(record).encode("utf-8", "backslashreplace"))
            steps.clear()
        return record

    def steps(self, target: Path, *, fingerprint: str) -> SavedSteps[SavedStep]:
        """Return the saved steps of an unfinished run, in a directory beside its future folder."""
        path, advice = target.with_name(f"{target.name}.{self.verb}ing"), "choose another folder for the model"
        return SavedSteps(path, SavedStep, root=target.parent, advice=advice, name=path.name, fingerprint=fingerprint)

    def check(self, out: str | Path, *, overwrite: bool = False, source: Path | None = None) -> tuple[Path, R | None]:
        """Return the real path of a folder that may be written, and the numbers of an existing model.

        With `overwrite` a damaged model has no numbers.
        """
        target = Path(os.path.realpath(from_home(out)))
        with folder_errors(Path(out), advice=f"choose another folder for the {self.what}"):
            if not target.exists():
                return target, None
            if not target.is_dir():
                raise DataError(f"expected a folder for the {self.what}, got the file {out}")
            if not any(target.iterdir()):
                return target, None
        # a list of checksums beside the record shows that we wrote the folder, even if both are damaged
        ours = (target / self.record).is_file() and (target / SUMS).is_file()
        record = None
        try:
            record = self.read(target)
        except DamagedStoreError as error:
            if ours and not overwrite:
                advice = f"remove {out}, or replace it with {option('overwrite', True)} if available"
                raise DamagedStoreError(f"{error}: {advice}") from error
        if record is None and not ours:
            raise DataError(f"{out} is not empty and has no {self.what}, so it is not replaced: choose another folder")
        if overwrite and source is not None and target in (real := Path(os.path.realpath(source)), *real.parents):
            raise DataError(f"{out} is the folder of the model itself: choose another folder")
        return target, record

    def read(self, folder: Path) -> R | None:
        """Return the numbers of the model in a folder, None if there is none."""
        for problem in folder_problems(folder):
            raise DamagedStoreError(problem)
        return read_kept(self.kind, folder / self.record, root=folder.parent)


def _go_on(steps: SavedSteps[SavedStep], *, overwrite: bool) -> None:
    """Find the step to continue from; one of another run is removed with `overwrite`, else DataError."""
    last = steps.last()
    if last is None or last[0]["fingerprint"] == steps.fingerprint:
        steps.resumed = last
    elif overwrite:
        steps.clear()
    else:
        raise DataError(
            f"{steps.path} contains an unfinished run with another model, other texts or settings: continue "
            f"with those, choose another folder, or start again with {option('overwrite', True)}"
        )


def model_card(tags: Sequence[str], *parts: str, base_model: str | None = None) -> str:
    """Return a card from its parts: YAML front matter and Markdown."""
    data = ModelCardData(
        library_name="transformers", tags=["feature-extraction", "layerprobe", *tags], base_model=base_model
    )
    return "\n\n".join((f"---\n{data.to_yaml()}\n---", *parts)) + "\n"


def as_block(lines: Iterable[str]) -> str:
    """Return lines as an indented block that Markdown renders verbatim."""
    return "\n".join(f"    {' '.join(line.splitlines())}".rstrip() for line in lines)
