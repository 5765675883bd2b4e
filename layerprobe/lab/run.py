"""Run a recipe: pretrain, adapt and fine-tune its models, measure and average; finished work is not repeated.

The result of a step is stored by the content of its initial model, so recipes with the same first steps, and
other processes, share it. If models are pretrained or become entries of a zoo, the recipe has a folder:
`models/` has the encoders, `zoo.json` the readings of each.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from layerprobe.comparison.compare import compare_all
from layerprobe.comparison.values import Comparison
from layerprobe.context import current, labelled, part
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.device import computed_on
from layerprobe.encoders.identity import Resolved, resolve
from layerprobe.encoders.loading import choose_workers, load, taken_over
from layerprobe.encoders.model import Model
from layerprobe.errors import (
    DataError,
    LayerProbeError,
    LostWorkerError,
    ModelError,
    TrainingError,
    UnsupportedArchitectureError,
)
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files.atomic import inside, locked, make_directory
from layerprobe.finetuning.outcomes import difference, outcomes, run_items
from layerprobe.finetuning.runs import (
    MODEL,
    agreed,
    check_precision,
    has_model,
    load_finished,
    run_directory,
    run_folder,
    without_checkpoint,
)
from layerprobe.finetuning.tuning import check_layers, finetune
from layerprobe.finetuning.values import FineTuningRun, Protocol, Weighting
from layerprobe.jobs.crew import Plan, Share, execute, make_crew
from layerprobe.lab.averages import average
from layerprobe.lab.dropbench.entry import zoo_entry
from layerprobe.lab.dropbench.zoo import OTHER_SEED, Zoo, ZooEntry, ZooProvenance, objective_effects, write_zoo
from layerprobe.lab.pretraining.masking import check_masked_lm
from layerprobe.lab.pretraining.run import RECORD, adapt_in_store, pretrain, stored_adaptation
from layerprobe.lab.pretraining.values import Adaptation, Pretraining
from layerprobe.lab.recipe import (
    AdaptStep,
    AverageStep,
    PretrainStep,
    Recipe,
    RecipeModel,
    TuneStep,
    loaded_corpus,
    loaded_task,
)
from layerprobe.lab.results import Average, RecipeCKA, RecipeResult, RecipeRow
from layerprobe.names import counted
from layerprobe.results.shown import Estimate
from layerprobe.tasks.loading import load_corpus
from layerprobe.tasks.values import Task, TextFile
from layerprobe.versions import __version__, versions

logger = logging.getLogger(__name__)

ZOO = "zoo.json"
Place = tuple[str, int, int]
"""Name of a model, a layer and a seed."""


class Curve(NamedTuple):
    """Runs that differ only in layer and seed."""

    model: str
    step: int
    """Number of the fine-tuning step, from 0; the tasks come after all steps."""
    task: int
    budget: str = ""
    alone: bool = False
    """Whether it starts without the earlier steps."""
    scan: str = ""
    """Weighting of scans; empty for models that are truncated first."""


Made = dict[Curve, list[FineTuningRun]]
"""Finished runs, by seed and layer."""


def run_recipe(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    ray: str | None = None,
    retry_failed: bool = False,
) -> RecipeResult:
    """Train the models of a recipe by its steps and on its tasks, and combine the results of each step.

    Adaptations train the whole model. The first fine-tuning truncates the result at each layer; each later one
    continues from the best epoch of the previous one, at the same layer and seed, with a new head. A killed recipe
    continues with the same numbers, and a second process with the same recipe shares
    the work. Failures are left out, with a warning.

    added at a layer = mean over seeds of (test score after the steps before the task - the same without
    them)

    CKA after fine-tuning is that of the first seed: otherwise the weights of all seeds would be stored.

    Args:
        recipe: The recipe.
        out: Folder for pretrained models and the zoo, if any; by default the recipe's name.
        workers: Processes that share the work and divide the processor threads; by default one.
        ray: Address of a Ray cluster, whose nodes do the work; all must see the folders.
        retry_failed: Repeat runs that are marked as failed.

    Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130); pairs of objectives: Clark et al. 2020 (arXiv 2003.10555).
    """
    level = current().level
    run = _Recipe(recipe, out, workers=workers, ray=ray, retry_failed=retry_failed)
    pretrainings = run.pretrained()
    starts = run.starts(pretrainings)
    before = {name: run.embedded(name, start) for name, start in starts.items()} if recipe.cka else {}
    adapted, adaptations = run.adapted(starts)
    made, left = run.tuned(starts, {name: chain[-1] for name, chain in adapted.items()})
    if not made:
        failure = run.failures[0]
        raise DataError(f"no model of {recipe.name} could be trained; {failure['model']}: {failure['reason']}")
    zoo = run.zoo(starts, pretrainings) if recipe.makes_zoo else None
    tasks = (*run.firsts, *run.tasks)
    warnings = [warning for task in tasks for warning in task.warnings]
    warnings += [warning for done in adaptations.values() for one in done for warning in one.warnings]
    return RecipeResult(
        recipe=replace(recipe, options=replace(recipe.options, cache_dir=None)),
        level=level,
        rows=tuple(run.rows(made, level)),
        cka=tuple(run.cka(before, adapted, left)),
        averages=tuple(run.averages(made, level)),
        adaptations=adaptations,
        pretrainings=pretrainings,
        zoo=zoo,
        effects=objective_effects(zoo.entries, level=level) if zoo and recipe.pretraining else (),
        failures=tuple(run.failures),
        computed_on=computed_on(run.options.device, run.options.dtype),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=tuple(dict.fromkeys(note for task in tasks for note in task.notes)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def plan_recipe(recipe: Recipe, out: str | Path | None = None) -> Estimate:
    """Return the steps of a recipe for each model, with the number of stored trainings; nothing is written."""
    run = _Recipe(recipe, out)
    return Estimate(
        title=f"{recipe.name}: {counted(len(recipe.everything), 'model')}, {counted(len(recipe.seeds), 'seed')}",
        jobs=tuple(job for model in recipe.everything for job in run.planned(model)),
        numbers={"recipe": replace(recipe, options=replace(recipe.options, cache_dir=None))},
    )


class _Recipe:
    """A recipe with its data loaded and existing models resolved and checked, without weights."""

    def __init__(
        self,
        recipe: Recipe,
        out: str | Path | None,
        *,
        workers: int | None = None,
        ray: str | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.recipe, self.out = recipe, Path(out or recipe.name)
        self.options = self._options()
        check_precision(self.options)
        self.workers, self.ray, self.retry_failed = workers, ray, retry_failed
        self.failures: list[dict[str, str]] = []
        self.models = {model.name: model for model in recipe.everything}
        self.texts = [load_corpus(step.texts) for step in recipe.of(AdaptStep)]
        self.firsts = [loaded_task(step.task) for step in recipe.of(TuneStep)]
        self.tasks = [loaded_task(task) for task in recipe.tasks]
        self.corpus = None if recipe.pretraining is None else loaded_corpus(recipe.pretraining)
        self.existing = {model.name: self._resolved(model) for model in recipe.models}

    def _options(self) -> Model:
        recipe, options = self.recipe, self.recipe.options
        if recipe.before or recipe.cka:
            # CKA uses the states that the tasks are learnt from, with texts truncated as there
            last = next(iter(recipe.budgets.values()))
            options = replace(
                options,
                pooling=last.pooling,
                prompt=options.prompt or "",
                max_length=options.max_length or last.max_length,
            )
        if (recipe.pretraining or recipe.makes_zoo) and not options.cache_dir:
            options = replace(options, cache_dir=self.out / "cache")
        return options

    def resolve(self, name: str, model: Path | Model) -> Resolved:
        """Return a checkpoint of a recipe's model, under the same name after every step."""
        spec = model if isinstance(model, Model) else Model(str(model))
        return resolve(replace(spec, display_name=name).like(self.options), items=self.tasks[0].readable)

    def _resolved(self, model: RecipeModel) -> Resolved:
        assert model.model is not None
        recipe, checkpoint = self.recipe, self.resolve(model.name, model.model)
        if recipe.of(AdaptStep):
            check_masked_lm(checkpoint)
        layers = self.layers(model.name, checkpoint)
        if model.reference is not None:
            try:
                reference = resolve(model.reference, like=self.options, items=self.tasks[0].readable)
            except ModelError as error:
                raise ModelError(f"the reference of {model.name} cannot be used: {error}") from error
            if reference.identity == checkpoint.identity:
                raise DataError(
                    f"expected a reference other than {model.name} itself, got {model.reference} with the same "
                    "content: CKA would be 1 at every layer"
                )
        if 0 in layers and (recipe.cka or recipe.of(TuneStep)) and (why := without_checkpoint(load(checkpoint))):
            raise UnsupportedArchitectureError(f"{why} for further steps and CKA: expected layers from 1")
        return checkpoint

    def layers(self, name: str, checkpoint: Resolved) -> tuple[int, ...]:
        """Return the layers to fine-tune a model at."""
        layers = self.recipe.model_layers(self.models[name])
        return tuple(check_layers(checkpoint, "all" if layers is None else layers))

    def failed(self, what: str, error: Exception | str) -> None:
        """Record a failure."""
        logger.warning("%s is left out: %s", what, error)
        self.failures.append({"model": what, "reason": str(error)})

    def folder(self, model: str) -> Path:
        """Return the folder of a pretrained model."""
        return inside(self.out, self.out / "models" / model)

    def pretrained(self) -> dict[str, Pretraining]:
        """Pretrain the recipe's models, or load them, by name; without those whose loss diverged."""
        step = self.recipe.pretraining
        if step is None:
            return {}
        make_directory(inside(self.out, self.out / "locks"))
        machines = choose_workers(
            self.options,
            self.out,
            count=self.workers,
            ray=self.ray,
            local="here" if self.workers in (None, 1) else "processes",
        )
        setting = step, self.out, self.corpus, self.options, computed_on(self.options.device, self.options.dtype)
        plan: Plan[str, Pretraining] = Plan(
            jobs=dict.fromkeys((model.name for model in step.models), 1.0), label="pretrains {}".format, unit="models"
        )
        made = {}
        with make_crew(_pretrainer, setting, machines, most=len(plan.jobs)) as crew:
            for name, outcome in execute(plan, crew, reports=False):
                if isinstance(outcome, TrainingError | LostWorkerError):
                    self.failed(name, outcome)
                elif isinstance(outcome, LayerProbeError):
                    raise outcome
                else:
                    made[name] = outcome
        return {model.name: made[model.name] for model in step.models if model.name in made}

    def starts(self, pretrainings: Mapping[str, Pretraining]) -> dict[str, Resolved]:
        """Return all models before any further step, by name."""
        return {name: self.resolve(name, self.folder(name)) for name in pretrainings} | self.existing

    def adapted(
        self, starts: Mapping[str, Resolved]
    ) -> tuple[dict[str, list[Resolved]], dict[str, tuple[Adaptation, ...]]]:
        """Return for each model the start and the result of each adaptation, and the losses of these."""
        chains, done = {name: [start] for name, start in starts.items()}, dict[str, tuple[Adaptation, ...]]()
        for adapt, texts in zip(self.recipe.of(AdaptStep), self.texts, strict=True):
            for name, chain in chains.items():
                path, adaptation = adapt_in_store(chain[-1], texts, protocol=adapt.protocol, seed=adapt.seed)
                chain.append(self.resolve(name, path))
                done[name] = (*done.get(name, ()), adaptation)
        return chains, done

    def tuned(
        self, starts: Mapping[str, Resolved], adapted: Mapping[str, Resolved]
    ) -> tuple[Made, dict[Place, Resolved]]:
        """Make all runs; return them, and the checkpoints after the first task if CKA needs them."""
        recipe, made, first = self.recipe, Made(), dict[Place, Resolved]()
        at, n_steps = self.places(adapted), len(self.firsts)
        whole = n_steps + len(recipe.budgets)
        for number, (step, task) in enumerate(zip(recipe.of(TuneStep), self.firsts, strict=True)):
            with part(start=number, share=1, whole=whole):
                at = self.train(made, Curve("", number, 0), [task], step.protocol, at, save_models=True)
        for number, (budget, protocol) in enumerate(recipe.budgets.items(), n_steps):
            curve, how = Curve("", n_steps, 0, budget), (self.tasks, protocol)
            with part(start=number, share=1, whole=whole):
                if recipe.cka and not first:
                    kept = {place: start for place, start in at.items() if place[2] == recipe.seeds[0]}
                    first = self.train(Made(), curve, self.tasks[:1], protocol, kept, save_models=True)
                self.train(made, curve, *how, at)
                if recipe.baseline and recipe.before:
                    self.train(made, curve._replace(alone=True), *how, self.places(starts))
                for weighting, seeds in recipe.scans.items():
                    whole_models = {(name, 0, seed): start for name, start in adapted.items() for seed in seeds}
                    self.train(made, curve._replace(scan=weighting), *how, whole_models)
        return made, first

    def places(self, starts: Mapping[str, Resolved]) -> dict[Place, Resolved]:
        """Return the start of each run, by model, layer and seed."""
        return {
            (name, layer, seed): start
            for name, start in starts.items()
            for seed, layer in itertools.product(self.recipe.seeds, self.layers(name, start))
        }

    def train(
        self,
        made: Made,
        curve: Curve,
        tasks: Sequence[Task],
        protocol: Protocol,
        at: Mapping[Place, Resolved],
        *,
        save_models: bool = False,
    ) -> dict[Place, Resolved]:
        """Add runs, or scans, on some tasks; return their checkpoints, if saved."""
        groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Resolved]] = {}
        for start in {id(start): start for start in at.values()}.values():
            layers = tuple(dict.fromkeys(layer for (_, layer, _), of in at.items() if of is start))
            seeds = tuple(dict.fromkeys(seed for (_, _, seed), of in at.items() if of is start))
            # the options have the length for CKA
            groups.setdefault((layers, seeds), []).append(start.with_options(max_length=None))
        left = {}
        how: dict[str, Any] = {"protocol": protocol, "retry_failed": self.retry_failed, "save_models": save_models}
        how |= {"workers": self.workers, "ray": self.ray}
        if curve.scan:
            how |= {"scan": True, "weighting": curve.scan}
        for (layers, seeds), models in groups.items():
            of_layers: Any = "all" if curve.scan else layers
            try:
                runs = finetune(models, list(tasks), of_layers, seeds=seeds, **how).runs
            except TrainingError as error:
                self.failed(f"{', '.join(model.label for model in models)} on {curve.budget or 'a step'}", error)
                continue
            for run in runs:
                if run.error:
                    self.failed(run.label, run.error)
                    continue
                place = next(i for i, task in enumerate(tasks) if task.name == run.task)
                made.setdefault(curve._replace(model=run.model, task=place), []).append(run)
                if save_models:
                    left[run.model, run.layer, run.seed] = self.resolve(run.model, run.directory / MODEL)
        return left

    def rows(self, made: Made, level: float) -> Iterator[RecipeRow]:
        """Yield one row per layer, with the gain from the steps before the tasks."""
        curves = {of: runs for of, runs in made.items() if not of.scan}
        items = {of: run_items(self.learnt(of), runs) for of, runs in curves.items()}
        steps = self.recipe.of(TuneStep)
        for of, runs in sorted(curves.items(), key=lambda curve: (curve[0].step, curve[0].task, curve[0].alone)):
            task, alone = self.recipe.tasks[of.task], of._replace(alone=True)
            if of.step < len(steps):
                task = steps[of.step].task
            for outcome in outcomes(runs, items[of], level=level):
                added = None
                if not of.alone and alone in curves:
                    both = [{run.seed: run for run in curves[one] if run.layer == outcome.layer} for one in (of, alone)]
                    seeds = sorted(both[0].keys() & both[1].keys())
                    first, second = ([one[seed] for seed in seeds] for one in both)
                    added = difference(first, second, (items[of], items[alone]), level=level) if seeds else None
                yield RecipeRow(
                    model=of.model,
                    step=task.step,
                    alone=of.alone,
                    task=task.label,
                    budget=of.budget,
                    outcome=outcome,
                    added=added,
                )

    def learnt(self, of: Curve) -> Task:
        """Return the task of some runs."""
        return self.firsts[of.step] if of.step < len(self.firsts) else self.tasks[of.task]

    def zoo(self, starts: Mapping[str, Resolved], pretrainings: Mapping[str, Pretraining]) -> Zoo | None:
        """Read every model with a known objective, and write its readings and the runs' scores to `zoo.json`."""
        recipe, entries = self.recipe, list[ZooEntry]()
        models = [model for model in self.models.values() if model.family and model.name in starts]
        tasks = zip(recipe.tasks, self.tasks, strict=True)
        for (number, model), (named, task) in itertools.product(enumerate(models, 1), tasks):
            start, references = starts[model.name], dict[str, Resolved]()
            if recipe.pretraining is not None and model.protocol is not None:
                twins = recipe.pretraining.references(model)
                references = {what: starts[twin.name] for what, twin in twins.items() if twin.name in pretrainings}
            elif model.reference is not None:
                references = {OTHER_SEED: resolve(model.reference, like=self.options, items=task.readable)}
            with (
                labelled(f"model {number} of {len(models)}, {model.name}"),
                contextlib.suppress(TrainingError),  # of a run, already recorded
            ):
                entry = zoo_entry(
                    start,
                    references,
                    task,
                    recipe.budgets,
                    name=recipe.entry_name(model, named),
                    family=model.family or "",
                    size=model.size or f"{count_blocks(start.config)} blocks",
                    seed=model.seed,
                    corpus="its own" if model.protocol is None or self.corpus is None else self.corpus.name,
                    seeds=recipe.seeds,
                    scans=recipe.scans,
                )
                entries.append(entry)
        if not entries:
            return None
        provenance = ZooProvenance(
            layerprobe=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=f"layerprobe lab run {recipe.name}.toml",
            versions=versions(),
            notes=(
                f"{len(entries)} entries of {counted(len(recipe.everything), 'encoder')}",
                *(
                    f"fine-tuned on {task.name}: {len(task.train)} training, {len(task.validation)} validation and "
                    f"{len(task.test)} test examples"
                    for task in self.tasks
                ),
            ),
        )
        zoo = Zoo(provenance=provenance, entries=tuple(entries))
        make_directory(self.out)
        write_zoo(zoo, self.out / ZOO)
        return zoo

    def embedded(self, name: str, start: Resolved) -> tuple[Embeddings, ...]:
        """Return the embeddings of a start and its reference on the texts of the first task's test split."""
        reference, checkpoints = self.models[name].reference, [start]
        if reference is not None:
            checkpoints.append(resolve(reference, like=self.options))
        return tuple(extract(checkpoint, self.tasks[0].test.texts).complete for checkpoint in checkpoints)

    def cka(
        self,
        before: Mapping[str, tuple[Embeddings, ...]],
        adapted: Mapping[str, Sequence[Resolved]],
        left: Mapping[Place, Resolved],
    ) -> Iterator[RecipeCKA]:
        """Yield CKA of each model with its start and its reference, after every adaptation and after the first task."""
        for name, (start, *reference) in before.items():
            partners: Sequence[int] = ()
            if reference:
                (comparison,) = compare_all(start, reference, device=self.options.device).comparisons
                partners = comparison.curve.reference_layers
                yield from _cka(comparison, partners, model=name, other=self.models[name].reference)
            trainings: list[tuple[str, int | None, int, Resolved]] = [
                (step.label, None, step.seed, checkpoint)
                for step, checkpoint in zip(self.recipe.of(AdaptStep), adapted[name][1:], strict=True)
            ]
            trainings += [
                (self.recipe.tasks[0].step, layer, seed, left[model, layer, seed])
                for model, layer, seed in sorted(left)
                if model == name
            ]
            for after, kept, seed, checkpoint in trainings:
                embeddings, about = extract(checkpoint, start.texts).complete, {"after": after, "kept": kept}
                # from the whole map: a truncated model has fewer layers than its partner
                itself, *others = compare_all(embeddings, [start, *reference], device=self.options.device).comparisons
                yield from _cka(itself, range(embeddings.n_layers), model=name, seed=seed, **about)
                for comparison in others:
                    other = self.models[name].reference
                    yield from _cka(comparison, partners, model=name, seed=seed, other=other, **about)

    def averages(self, made: Made, level: float) -> Iterator[Average]:
        """Yield the averages of the recipe, for each task and budget."""
        for step in self.recipe.of(AverageStep):
            groups: dict[tuple[int, str, str], dict[str, list[FineTuningRun]]] = {}
            weighting = next(iter(self.recipe.scans)) if step.of == "scans" else ""
            for of, runs in made.items():
                if of.step < len(self.firsts) or of.alone or of.scan != weighting:
                    continue
                for run in sorted(runs, key=lambda one: (one.layer, one.seed)):
                    if step.layers is None or run.layer in step.layers:
                        layer = f"layer {run.layer}"
                        whole, member = {
                            "models": ("all models", f"{of.model} {layer}"),
                            "seeds": (f"{of.model}, {layer}", f"{layer} seed {run.seed}"),
                        }.get(step.of, (of.model, layer))
                        members = groups.setdefault((of.task, of.budget, whole), {})
                        members.setdefault(member, []).append(run)
            for (task, budget, whole), members in groups.items():
                yield average(
                    self.tasks[task],
                    members,
                    model=whole,
                    budget=budget,
                    joint=step.of == "scans",
                    level=level,
                )

    def planned(self, model: RecipeModel) -> Iterator[dict[str, Any]]:
        """Yield the steps of a model; steps after one that is not stored are not stored either."""
        recipe, start = self.recipe, self.existing.get(model.name)

        def job(what: str, total: int, stored: int) -> dict[str, Any]:
            return {"model": model.name, "step": what, "trainings": total, "stored": stored}

        if model.protocol is not None:
            if (self.folder(model.name) / RECORD).is_file():
                start = self.resolve(model.name, self.folder(model.name))
            yield job(f"pretraining, {model.protocol.steps:,} steps", 1, int(start is not None))
        checkpoint = start
        for adapt, texts in zip(recipe.of(AdaptStep), self.texts, strict=True):
            if checkpoint is not None:
                path, adaptation = stored_adaptation(checkpoint, texts, protocol=adapt.protocol, seed=adapt.seed)
                checkpoint = None if adaptation is None else self.resolve(model.name, path)
            yield job(adapt.label, 1, int(checkpoint is not None))
        at = {} if checkpoint is None else self.places({model.name: checkpoint})
        if start is not None:
            runs = len(self.places({model.name: start}))
        else:
            assert model.protocol is not None
            runs = len(recipe.seeds) * len(recipe.model_layers(model) or range(model.protocol.size.n_blocks + 1))
        for step, task in zip(recipe.of(TuneStep), self.firsts, strict=True):
            done = self.stored(task, step.protocol, at)
            yield job(step.task.step, runs, len(done))
            at = {place: self.resolve(model.name, path / MODEL) for place, path in done.items() if has_model(path)}
        tasks = zip(recipe.tasks, self.tasks, strict=True)
        for (named, task), (budget, protocol) in itertools.product(tasks, recipe.budgets.items()):
            what = f"{named.step}, budget {budget}"
            yield job(what, runs, len(self.stored(task, protocol, at)))
            if recipe.baseline and recipe.before:
                alone = {} if start is None else self.places({model.name: start})
                yield job(f"{what}, without the steps before it", runs, len(self.stored(task, protocol, alone)))
            for weighting, seeds in recipe.scans.items():
                whole = {} if checkpoint is None else {(model.name, 0, seed): checkpoint for seed in seeds}
                done = self.stored(task, protocol, whole, weighting)
                yield job(f"{what}, {weighting} scans", len(seeds), len(done))

    def stored(
        self, task: Task, protocol: Protocol, at: Mapping[Place, Resolved], scan: Weighting | None = None
    ) -> dict[Place, Path]:
        """Return the directories of the finished runs."""
        directories = {}
        for (name, layer, seed), start in at.items():
            how, checkpoint = agreed(protocol, start.with_options(max_length=None))
            directory = run_directory(run_folder(checkpoint, task, how), layer, seed, scan)
            if load_finished(directory) is not None:
                directories[name, layer, seed] = directory
        return directories


def _cka(comparison: Comparison, partners: Sequence[int], **about: Any) -> Iterator[RecipeCKA]:
    """Read the similarity of each layer to its partner from a map; `about` has further fields of the rows."""
    errors, values = comparison.map.uncertainty, comparison.map.values
    for layer, partner in enumerate(partners[: comparison.model.n_layers]):
        ends = None if errors is None else (errors.lower[layer][partner], errors.upper[layer][partner])
        yield RecipeCKA(layer=layer, other_layer=partner, value=values[layer][partner], interval=ends, **about)


def _pretrainer(
    setting: tuple[PretrainStep, Path, TextFile, Model, str], share: Share
) -> Callable[[str], Pretraining | None]:
    """Return a function that pretrains a model, or loads a finished one; None if another process is making it."""
    step, out, corpus, options, computes = setting
    options = taken_over(options, computes, share)
    models = {model.name: model for model in step.models}

    def work(name: str) -> Pretraining | None:
        model, number = models[name], list(models).index(name) + 1
        assert model.protocol is not None
        lock = locked(out, out / "locks" / f"{name}.lock")
        with labelled(f"model {number} of {len(models)}, {name}"), lock as is_free:
            if not is_free:
                return None
            return pretrain(
                inside(out, out / "models" / name),
                corpus,
                protocol=model.protocol,
                seed=model.seed,
                device=options.device,
                dtype=options.dtype,
            )

    return work
