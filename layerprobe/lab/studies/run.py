"""Runs a lab study: pretrains encoders that differ only in the objective, fine-tunes them, and makes a zoo.

In the folder of a study: `models/` has the encoders, `entries/` the numbers of each, `zoo.json` all of them. Any number
of processes can work in it: each model is made by one of them, and what is there is read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from layerprobe.context import current, labelled
from layerprobe.embedded.pair import TASK_SIZES, embedded_task
from layerprobe.encoders.device import computed_on
from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.encoders.workers import taken_over, workers_of
from layerprobe.errors import DamagedStoreError, DataError, LayerProbeError, LostWorkerError, TrainingError
from layerprobe.files.atomic import inside, locked, make_directory
from layerprobe.files.folders import read_kept, write_kept
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.saved import load_finished
from layerprobe.finetuning.tuning import check_pooling, check_precision, run_folder
from layerprobe.finetuning.values import JointRun
from layerprobe.jobs.crew import Plan, Share, crew_of
from layerprobe.jobs.execute import execute
from layerprobe.lab.dropbench.entry import zoo_entry
from layerprobe.lab.dropbench.zoo import TWIN, Zoo, ZooEntry, write_zoo, zoo_made_by
from layerprobe.lab.pretraining.run import RECORD, pretrain, texts_of
from layerprobe.lab.pretraining.values import LANGUAGE, Pretraining
from layerprobe.lab.studies.values import LabModel, LabResult, LabStudy, LabTask, objective_effects
from layerprobe.results.estimate import Estimate
from layerprobe.store.store import Store
from layerprobe.tasks.loading import load_corpus, load_settings
from layerprobe.tasks.splitting import drawn_from, resplit
from layerprobe.tasks.values import Task, TextFile
from layerprobe.versions import LAB_VERSION

logger = logging.getLogger(__name__)

ZOO, RESULTS = "zoo.json", "lab.json"
OPTIONAL = ("pooling", "prompt", "norm", "attn", "batch_tokens", "store_dtype")
"""Options on which the numbers of an entry depend, too."""
Job = tuple[LabModel, LabTask]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabEntry:
    """The stored results of one model."""

    fingerprint: str
    """sha256 of all that the entry depends on."""
    model: str
    """Its name."""
    pretraining: Pretraining
    entry: ZooEntry


def run_lab(
    study: LabStudy,
    out: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    options: Model = DEFAULTS,
) -> LabResult:
    """Pretrain each encoder, compare it with its MLM twins, fine-tune it at every layer, and collect the results.

    What is done is kept in the folder and read the next time, also after the process was killed; a second process
    with the same study and folder takes part in the work. `zoo.json` is written after every model. A model whose loss
    is not finite is left out, with a warning.

    The `workers` are the processes that share the work, by default one, between which processor threads are divided.
    With `ray`, the address of a Ray cluster, they are processes on its nodes, by default one for each GPU, else one a
    node; all nodes must see the folder. Embeddings and runs are kept in the folder, unless the options say where.
    """
    level = current().level
    folders = Path(out), Store(options.cache_dir or Path(out) / "cache").root
    local = "here" if workers in (None, 1) else "processes"
    machines = workers_of(options, *folders, count=workers, ray=ray, local=local)
    run = _LabRun.of(study, Path(out), options)
    make_directory(inside(run.out, run.out / "entries"))
    here = run if machines.executor == "here" else None
    setting: Setting = study, run.out, run.options, computed_on(run.options), here
    plan: Plan[str, bool] = Plan(jobs=dict.fromkeys(run.jobs, 1.0), label="makes {}".format, unit="models")
    with crew_of(_worker, setting, machines, most=len(run.jobs)) as crew:
        for name, outcome in execute(plan, crew, reports=False):
            if isinstance(outcome, TrainingError | LostWorkerError):
                logger.warning("%s is left out: %s", name, outcome)
                run.failures[name] = str(outcome)
            elif isinstance(outcome, LayerProbeError):
                raise outcome
    result = run.result(level)
    write_kept(run.out / RESULTS, result, root=run.out)
    return result


def plan_lab(study: LabStudy, out: str | Path, *, options: Model = DEFAULTS) -> Estimate:
    """Return the encoders of a study and how much of each is finished; nothing is written."""
    run = _LabRun.of(study, Path(out), options)
    return Estimate(
        title=f"{study.name}: {len(study.models)} models on {', '.join(study.corpus)}",
        jobs=tuple(map(run.planned, study.models)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LabRun:
    """A study with its data loaded."""

    study: LabStudy
    out: Path
    options: Model
    corpus: TextFile
    tasks: dict[LabTask, Task]
    """Loaded."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why there is no entry, by its name."""
    not_pretrained: dict[str, str] = field(default_factory=dict)
    """Why a model could not be pretrained, by its name."""

    @classmethod
    def of(cls, study: LabStudy, out: Path, options: Model) -> _LabRun:
        check_precision(options)
        for protocol in study.budgets.values():
            check_pooling(protocol, options)
        corpus = (
            texts_of(LANGUAGE, study.pretraining)
            if study.corpus == (LANGUAGE,)
            else load_corpus(study.corpus, columns=study.column)
        )
        fewest = study.pretraining.batch_size
        if len(set(corpus.texts)) < fewest and not study.pretraining.packed:
            raise DataError(
                f"expected at least {fewest} distinct texts, a batch, got {len(set(corpus.texts))}: "
                "give more texts or a smaller batch_size"
            )
        # a zoo is passed on: it names files, not somebody's folders
        return cls(
            study=study,
            out=out,
            options=options if options.cache_dir else replace(options, cache_dir=out / "cache"),
            corpus=replace(corpus, name=", ".join(map(_file_name, study.corpus))),
            tasks={task: loaded_task(task) for task in study.tasks},
        )

    # ---- where things are --------------------------------------------------------------------------------

    def folder(self, model: LabModel) -> Path:
        return inside(self.out, self.out / "models" / model.name)

    def file(self, job: Job) -> Path:
        return self.out / "entries" / f"{self.study.entry_name(*job)}.json"

    def lock(self, name: str, *, wait: bool) -> AbstractContextManager[bool]:
        """Keep other processes away; False where one has the lock and is not waited for."""
        return locked(self.out, self.out / "locks" / f"{name}.lock", wait=wait)

    # ---- one model ---------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, Job]:
        """The entries to be made, by name: of every model, one a task."""
        jobs = itertools.product(self.study.models, self.study.tasks)
        return {self.study.entry_name(*job): job for job in jobs}

    def make_unless_busy(self, name: str) -> bool | None:
        """Make an entry unless it exists; return None if another process is making it."""
        with self.lock(name, wait=False) as held:
            if not held:
                return None
            self.make(self.jobs[name])
            return True

    def make(self, job: Job) -> None:
        (model, lab_task) = job
        task = self.tasks[lab_task]
        pretraining = self.pretrained(model)
        references = {}
        for what, other in self.study.references(model).items():
            with contextlib.suppress(TrainingError):  # warned of when its own turn comes
                references[what] = (other, self.pretrained(other))
        twins = {what: twin.fingerprint for what, (_, twin) in references.items()}
        fingerprint = self.fingerprint(task, pretraining, twins)
        if self.stored(job, fingerprint) is not None:
            return
        with self.labelled(model):
            entry = zoo_entry(
                Model.of(str(self.folder(model)), self.options),
                {what: self.folder(other) for what, (other, _) in references.items()},
                task,
                self.study.budgets,
                name=self.study.entry_name(*job),
                family=model.family,
                size=model.size,
                seed=model.seed,
                corpus=self.corpus.name,
                seeds=self.study.finetuning_seeds,
                scans=self.study.scans,
            )
        made = LabEntry(fingerprint=fingerprint, model=model.name, pretraining=pretraining, entry=entry)
        write_kept(self.file(job), made, root=self.out)
        write_zoo(self.zoo([record.entry for record in self.all_stored()]), self.out / ZOO)

    def labelled(self, model: LabModel) -> contextlib.AbstractContextManager[None]:
        """Put a model's place and name before the names of tasks that are reported inside a `with` block."""
        models = self.study.models
        return labelled(f"model {models.index(model) + 1} of {len(models)}, {model.name}")

    def pretrained(self, model: LabModel) -> Pretraining:
        """Pretrain a model, or load a finished one; waits for another process that is pretraining it."""
        if model.name in self.not_pretrained:
            raise TrainingError(self.not_pretrained[model.name])
        # no entry has a slash in its name
        with self.lock(f"pretraining/{model.name}", wait=True), self.labelled(model):
            try:
                return pretrain(
                    self.folder(model),
                    self.corpus,
                    protocol=model.protocol,
                    seed=model.seed,
                    device=self.options.device,
                    dtype=self.options.dtype,
                )
            except TrainingError as error:
                self.not_pretrained[model.name] = str(error)
                raise

    def fingerprint(self, task: Task, pretraining: Pretraining, references: dict[str, str]) -> str:
        study, options = self.study, self.options
        tuned = [study.budgets, study.finetuning_seeds, study.scans, task.digest]
        how = [*tuned, computed_on(options), options.max_length]
        values = {name: getattr(options, name) for name in OPTIONAL}
        # only what is given, so that entries of an older layerprobe are found
        changed = {name: value for name, value in values.items() if value != getattr(DEFAULTS, name)}
        return digest([LAB_VERSION, pretraining.fingerprint, references, *how, *([changed] if changed else [])])

    def expected(self, job: Job) -> str | None:
        """Return an entry's fingerprint from the finished models; None if its own is not finished."""
        model, task = job
        pretraining = self.record(model)
        records = {what: self.record(other) for what, other in self.study.references(model).items()}
        twins = {what: twin.fingerprint for what, twin in records.items() if twin is not None}
        return None if pretraining is None else self.fingerprint(self.tasks[task], pretraining, twins)

    def record(self, model: LabModel) -> Pretraining | None:
        """Return how a model was pretrained; None where it was not, or its record is damaged."""
        folder = self.folder(model)
        with contextlib.suppress(DamagedStoreError):
            return read_kept(Pretraining, folder / RECORD, root=folder.parent)
        return None

    def stored(self, job: Job, fingerprint: str) -> LabEntry | None:
        """Return the entry of a model and task; None where there is none, it is damaged or of another study."""
        file = self.file(job)
        try:
            entry = read_kept(LabEntry, file, root=self.out)
            if entry is not None and entry.model != job[0].name:
                raise DamagedStoreError(f"{file} cannot be read (it is of {entry.model})")
        except DamagedStoreError as error:
            logger.warning("%s: it is made again", error)
            return None
        return entry if entry is not None and entry.fingerprint == fingerprint else None

    # ---- all of them -------------------------------------------------------------------------------------

    def all_stored(self) -> list[LabEntry]:
        """Return the finished entries of this study, without those of an earlier study in its folder.

        Corpus and task are called as they are now: the same content may have had another name when an entry was made.
        """
        entries = []
        for job in (job for name, job in self.jobs.items() if name not in self.failures):
            expected = self.expected(job)
            stored = None if expected is None else self.stored(job, expected)
            if stored is not None:
                named = replace(stored.entry, corpus=self.corpus.name, task=self.tasks[job[1]].name)
                entries.append(replace(stored, entry=named))
        return entries

    def zoo(self, entries: list[ZooEntry]) -> Zoo:
        study = self.study
        sizes = ", ".join(
            f"{name}: {size.n_blocks} blocks of {size.hidden_size} features" for name, size in study.sizes.items()
        )
        notes = (
            f"{len(entries)} of {len(self.jobs)} entries, of {len(study.models)} encoders; {sizes}"
            if len(study.tasks) > 1
            else f"{len(entries)} of {len(study.models)} encoders; {sizes}",
            f"pretrained for {study.pretraining.steps} steps of "
            f"{study.pretraining.batch_size * study.pretraining.accumulation} sequences on {self.corpus.name}",
            *(
                f"fine-tuned on {task.name}: {len(task.train)} training, {len(task.validation)} validation and "
                f"{len(task.test)} test examples"
                for task in self.tasks.values()
            ),
        )
        return zoo_made_by(f"layerprobe lab study {study.name}.toml", entries, notes)

    def result(self, level: float) -> LabResult:
        entries = self.all_stored()
        if not entries:
            name, reason = next(iter(self.failures.items()))
            raise DataError(f"no model of {self.study.name} could be made; {name}: {reason}")
        zoo = self.zoo([record.entry for record in entries])
        write_zoo(zoo, self.out / ZOO)
        effects = objective_effects(zoo.entries, level=level)
        compared = {TWIN, *(effect.family for effect in effects)}
        for family in dict.fromkeys(entry.family for entry in zoo.entries if entry.family not in compared):
            logger.warning("%s has no effect: no %s model of the same size and seed is there", family, TWIN)
        return LabResult(
            study=self.study,
            level=level,
            zoo=zoo,
            pretrainings={entry.model: entry.pretraining for entry in entries},
            effects=effects,
            computed_on=computed_on(self.options),
            failures=tuple({"model": name, "reason": reason} for name, reason in self.failures.items()),
        )

    def planned(self, model: LabModel) -> dict[str, Any]:
        pretrained = (self.folder(model) / RECORD).is_file()
        study, stored, n_runs = self.study, 0, 0
        pairs = list(itertools.product(range(model.protocol.size.n_blocks + 1), study.finetuning_seeds))
        scans = [(weighting, seed) for weighting, seeds in study.scans.items() for seed in seeds]
        for task, protocol in itertools.product(self.tasks.values(), study.budgets.values()):
            n_runs += len(pairs) + len(scans)
            if pretrained:
                runs = run_folder(resolve(str(self.folder(model)), like=self.options), task, protocol)
                stored += sum(runs.load(layer, seed) is not None for layer, seed in pairs)
                stored += sum(load_finished(JointRun, runs.joint_path(*each)) is not None for each in scans)
        size = model.protocol.size
        return {
            "model": model.name,
            "size": f"{size.n_blocks} x {size.hidden_size}",
            "pretraining": "stored" if pretrained else f"{study.pretraining.steps} steps",
            "trainings": n_runs,
            "stored": stored,
        }


def loaded_task(task: LabTask) -> Task:
    """Load a task and draw its examples; it is named as in the zoo, without the folders of a file."""
    settings, examples = task.settings, task.examples
    if settings.source == LANGUAGE:
        train, validation, test = examples or TASK_SIZES
        assert test is not None  # a language has no rest
        whole = embedded_task(train=train, validation=validation, test=test)
    else:
        whole = load_settings(settings)
        if examples is not None:
            train, validation, test = examples
            if test is None:
                whole = resplit(whole, train=train, validation=validation, seed=settings.split_seed)
            else:
                whole = drawn_from(whole, (train, validation, test))
    return replace(whole, name=task.name or _file_name(whole.name))


def _file_name(source: str) -> str:
    """Return what a source is called, without the folders of a file."""
    return Path(source).name if Path(source).exists() else source


# ---- those who make them ---------------------------------------------------------------------------------


Setting = tuple[LabStudy, Path, Model, str, _LabRun | None]
"""What a worker needs: study, folder, options, what these compute on, and the study as it is loaded in this process;
None for other processes."""


def _worker(setting: Setting, share: Share) -> Callable[[str], bool | None]:
    """Return a function that makes the entry of a name, see `_LabRun.make_unless_busy`."""
    study, out, options, computes, here = setting
    options = taken_over(options, computes, share)
    return (here or _LabRun.of(study, out, options)).make_unless_busy
