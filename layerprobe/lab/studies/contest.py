"""Makes a DropBench zoo of existing encoders, such as those of the Hub: their readings and every layer's scores.

A contest is a TOML file; `layerprobe/lab/dropbench/contest.toml` is one of six encoders that nobody here made.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from layerprobe.context import labelled
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.errors import DataError, ModelError, TrainingError
from layerprobe.files.atomic import make_directory
from layerprobe.files.toml import SEEDS, read_toml
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.lab.dropbench.entry import zoo_entry
from layerprobe.lab.dropbench.zoo import OTHER_SEED, Zoo, ZooEntry, write_zoo, zoo_made_by
from layerprobe.lab.reproduction.paper import FLOPS_A_SECOND
from layerprobe.lab.studies.run import ZOO, loaded_task
from layerprobe.lab.studies.values import LabTask, taken_lab_task, taken_training
from layerprobe.names import counted, short_name
from layerprobe.readings.registry import RIVALS
from layerprobe.results.estimate import Estimate
from layerprobe.tasks.values import Task, model_reader

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestModel:
    """A ready encoder."""

    id: str
    """Of the Hub, or a folder."""
    family: str
    """Its pretraining objective: a rule is scored on other families than it is tuned on."""
    reference: str
    """The masked language model that it is compared with by CKA, another than itself."""
    blocks: int
    """For its cost, and checked before anything is trained."""
    parameters: tuple[float, float]
    """Millions at layer 0 and of the whole, for its cost."""

    def millions(self, layer: int) -> float:
        """Return the parameters at a layer, as blocks are alike."""
        first, whole = self.parameters
        return first + (whole - first) * layer / self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Ready encoders, and how they are fine-tuned."""

    name: str
    models: tuple[ContestModel, ...]
    task: LabTask
    """With the numbers of its examples."""
    budgets: dict[str, Protocol]
    """By name."""
    finetuning_seeds: tuple[int, ...] = (0, 1, 2)
    """One run each at every layer under every budget."""
    scans: dict[Weighting, tuple[int, ...]] = field(default_factory=dict)
    """Seeds of scans by weighting."""
    tokens: int = 40
    """Of a text in a batch, with its padding, for the cost."""

    def __post_init__(self) -> None:
        names = [model.id for model in self.models]
        if not names or len(set(names)) < len(names):
            raise DataError(f"expected at least one model, and each of them once, got {', '.join(names) or 'none'}")
        if len(set(map(short_name, names))) < len(names):
            raise DataError(f"expected models that differ in more than their owner, got {', '.join(names)}")
        if itself := [model.id for model in self.models if model.id == model.reference]:
            raise DataError(f"expected a reference other than {itself[0]} itself: CKA would be 1 at every layer")
        if wrong := [model.id for model in self.models if model.blocks < 1 or min(model.parameters) <= 0]:
            raise DataError(f"expected at least one block and some parameters of {wrong[0]}")
        if self.task.examples is None or self.task.examples[2] is None:
            raise DataError("expected examples, three whole numbers, for the cost, got none")
        if not self.budgets or not self.finetuning_seeds:
            raise DataError("expected at least one budget and one seed of fine-tuning")


def load_contest(path: str | Path) -> Contest:
    """Read a contest from a TOML file such as the one that comes with layerprobe; paths are relative to the file."""
    keys = read_toml(path, "the contest", absolute=True)
    models = tuple(
        table.whole(
            ContestModel,
            {"id": table.take("id", model_reader(table)), "reference": table.take("reference", model_reader(table))},
        )
        for table in keys.tables("models")
    )
    training = taken_training(keys, name=Path(path).stem)
    values = {"models": models, "task": taken_lab_task(keys.table("task")), **training}
    return keys.whole(Contest, values, readers={"finetuning_seeds": SEEDS})


def plan_contest(contest: Contest) -> Estimate:
    """Count the runs of a contest and estimate their GPU hours, without a model or the network.

    Hours are of the runs alone: 6 FLOPs a parameter and token of a training step, 2 of an evaluation, at
    `FLOPS_A_SECOND`.
    """
    jobs = tuple(_planned(contest, model) for model in contest.models)
    budgets = (
        f"{name}: epochs {how.epochs}, learning rate {how.learning_rate:g}, batches of {how.batch_size}"
        for name, how in contest.budgets.items()
    )
    seeds, scans = len(contest.finetuning_seeds), sum(map(len, contest.scans.values()))
    train, validation, test = contest.task.examples or (0, 0, 0)
    hours = sum(job["gpu_hours"] for job in jobs)
    return Estimate(
        title=f"{contest.name}: {counted(len(jobs), 'encoder')}, {contest.task.settings.source}",
        jobs=jobs,
        details=(
            f"\n{train} training, {validation} validation and {test} test examples, {contest.tokens} tokens a text",
            f"every layer with {counted(seeds, 'seed')}, and {counted(scans, 'scan')}, under each budget; "
            + "; ".join(budgets),
            f"about {hours:.1f} GPU hours at {FLOPS_A_SECOND / 1e12:.0f} TFLOP/s (estimated)",
        ),
        numbers={"contest": contest, "gpu_hours": hours},
    )


def _planned(contest: Contest, model: ContestModel) -> dict[str, Any]:
    train, validation, test = contest.task.examples or (0, 0, 0)
    n_seeds, n_scans = len(contest.finetuning_seeds), sum(map(len, contest.scans.values()))
    millions = n_seeds * sum(map(model.millions, range(model.blocks + 1))) + n_scans * model.millions(model.blocks)
    n_runs, steps, flops = n_seeds * (model.blocks + 1) + n_scans, 0, 0.0
    for how in contest.budgets.values():
        steps += n_runs * how.epochs * math.ceil(train / how.batch_size)
        texts = 6 * train * how.epochs + 2 * (validation * how.epochs * how.evaluations + (test or 0))
        flops += millions * 1e6 * 2 * contest.tokens * texts
    return {
        "model": model.id,
        "family": model.family,
        "blocks": model.blocks,
        "parameters": model.parameters[1],
        "runs": n_runs * len(contest.budgets),
        "steps": steps,
        "gpu_hours": flops / FLOPS_A_SECOND / 3600,
    }


def run_contest(contest: Contest, out: str | Path, *, options: Model = DEFAULTS) -> Zoo:
    """Measure and fine-tune every encoder at every layer, and write the results to `zoo.json` in a folder.

    Every part is kept in the folder, so a killed contest goes on where it was. A model whose training fails is left
    out, with a warning.
    """
    out = Path(out)
    make_directory(out)
    options = options if options.cache_dir else replace(options, cache_dir=out / "cache")
    task, entries, failures = loaded_task(contest.task), list[ZooEntry](), list[str]()
    for model in contest.models:
        _check_model(model, task, options)
    for number, model in enumerate(contest.models, 1):
        with labelled(f"model {number} of {len(contest.models)}, {short_name(model.id)}"):
            try:
                entry = zoo_entry(
                    Model.of(model.id, options),
                    {OTHER_SEED: Model.of(model.reference, options)},
                    task,
                    contest.budgets,
                    name=short_name(model.id),
                    family=model.family,
                    size=f"{model.blocks} blocks",
                    seed=0,
                    corpus="its own",
                    seeds=contest.finetuning_seeds,
                    scans=contest.scans,
                    unlisted=RIVALS,
                )
            except TrainingError as error:
                logger.warning("%s is left out: %s", model.id, error)
                failures.append(f"{model.id}: {error}")
                continue
        entries.append(entry)
        write_zoo(_zoo(contest, entries), out / ZOO)
    if not entries:
        raise DataError(f"no model of {contest.name} could be fine-tuned: {failures[0]}")
    return _zoo(contest, entries)


def _check_model(model: ContestModel, task: Task, options: Model) -> None:
    """Raise an error if the model or its reference is not what the contest needs; no weights are read."""
    checkpoint = resolve(Model.of(model.id, options), items=task.readable)
    if (n_blocks := count_blocks(checkpoint.config)) != model.blocks:
        raise DataError(f"expected {model.blocks} blocks of {model.id}, got {n_blocks}: correct the contest")
    try:
        reference = resolve(Model.of(model.reference, options), items=task.readable)
    except ModelError as error:
        raise ModelError(f"the reference of {model.id} cannot be used: {error}") from error
    if reference.identity == checkpoint.identity:
        raise DataError(
            f"expected a reference other than {model.id} itself, got {model.reference} with the same content: "
            "CKA would be 1 at every layer"
        )


def _zoo(contest: Contest, entries: list[ZooEntry]) -> Zoo:
    notes = (f"{len(entries)} of {len(contest.models)} encoders", *(model.id for model in contest.models))
    return zoo_made_by(f"layerprobe lab bench {contest.name}.toml", entries, notes)
