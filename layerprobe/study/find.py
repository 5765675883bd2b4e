"""The layer to keep: readings suggest where to look, fine-tuning of truncated models decides.

`LayerSearch` chooses the next run and interprets the scores; a `ModelSearch` makes the runs of its model.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch

from layerprobe.checks import Seeds, check_count, one_layer, settings_or_default
from layerprobe.context import current, part, report
from layerprobe.encoders.architecture import count_blocks, count_parameters
from layerprobe.encoders.device import resolve_device
from layerprobe.encoders.identity import ModelLike, Resolved, check_different, resolve_all
from layerprobe.encoders.loading import SharedModel, choose_workers
from layerprobe.errors import DataError, TrainingError
from layerprobe.finetuning.runs import RESULT, RunWorker, agreed, pooled_by, run_folder, run_set
from layerprobe.finetuning.tuning import plan_tuning
from layerprobe.finetuning.values import Protocol
from layerprobe.jobs.processes import available_cores, import_ahead
from layerprobe.names import counted
from layerprobe.results.shown import Estimate, OneLayer, together
from layerprobe.search.ask import LayerSearch, SearchState
from layerprobe.search.plan import answers_among, data_use_sentences
from layerprobe.search.posterior import posterior, side_by_side
from layerprobe.search.values import SEEDS, PlannedRun, SearchSettings
from layerprobe.stats.values import TOLERANCE
from layerprobe.store.store import Store
from layerprobe.study.model_search import ModelSearch, SearchRuns
from layerprobe.study.predict import References, model_tuple
from layerprobe.study.values import Finding
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.explored import joined
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task, folds_of, spoilt_items
from layerprobe.tasks.values import Task

SMALL_VALIDATION = 1000
"""Below so many validation examples, layers are chosen by cross-validation on training and validation examples."""
PATIENCE = 2
"""Default `patience` of the runs of a search."""
MOST_JOBS = 4
"""Largest default number of parallel runs."""
READING_SHARE = 0.1
"""Time of the readings and of scores before training, as a share of the time of the runs."""


def find(
    model: ModelLike | list[Any],
    task: Task,
    *,
    reference: References = None,
    tolerance: float = TOLERANCE,
    budget: float | None = None,
    seeds: Seeds = SEEDS,
    cross_validation: bool | None = None,
    start: OneLayer | None = None,
    against_last: int = 0,
    final: bool = False,
    protocol: Protocol | None = None,
    save_models: bool = False,
    jobs: int | None = 1,
    ray: str | None = None,
) -> Finding:
    """Find the layer whose truncated, fine-tuned model scores best, for a small share of a full sweep.

    InfoNCE of the pretrained model suggests where to look first, and CKA between its layers how different they are.
    Models truncated at the layers that may be best are fine-tuned, each run chosen to be most informative, until the
    best layer is known to within the tolerance, more seeds cannot help, or the budget is spent: see
    `layerprobe.search.plan.next_run`. Finished runs are reused, and an interrupted search continues.

    A run that did not train (see `failure_sign`) is no evidence about its layer, which gets another seed if it may
    still be the best. A layer with two runs without a score, while others have one, is left out from then on. So is
    layer 0 with `save_models` if the model cannot run without a block and would have no checkpoint there.

    Layers are chosen by validation scores alone. With few validation examples, training and validation examples are
    pooled and divided into folds, see `folds_within`: seed k is validated on fold k modulo their number and trained on
    the others. The test split only scores the chosen layer.

    Several models share the budget, a share of the total cost of their full sweeps: each gets a first run, and the
    others go where they can still change which layer of which model is the best. A block-step costs the parameters of
    one block. A model without a score after three runs is left out and named in `failures`. Finished runs of seeds 0,
    1, ... of a layer count as evidence at no cost; they do not influence which runs are made.

    Args:
        model: A name, a folder or a `Model`; or a list of different models, which are searched together.
        task: The task to fine-tune on.
        reference: One or several models to compare the layers with before training, as in `predict`.
        tolerance: Loss that you accept for a smaller model, in points of the primary metric x 100.
        budget: Share of the full sweep (every layer with every seed) that may be spent; by default 15 %, and all of it
            for models of up to 4 blocks.
        seeds: Largest number of seeds per layer, also in the full sweep.
        cross_validation: Whether to validate runs by folds of the training and validation examples; by default with
            fewer than 1,000 validation examples.
        start: The first layer to run; by default the one with the highest InfoNCE, or the middle one.
        against_last: Number of seeds for a final comparison of the layer to keep with the last layer on the test
            split, in addition to the budget. With several models, layers of the chosen one are compared.
        final: Fine-tune the layer to keep once more, on training and validation examples together, for the number of
            epochs that validation chose, and keep its weights for `export_model`. The test split scores it and is not
            trained on. The share of paraphrases is the one chosen by the search's runs on pairs not trained on.
        protocol: Settings of fine-tuning; those of the paper by default. Unless it states a `patience`, runs stop when
            three epochs in a row score within 0.2 points on validation. Runs of `finetune` are shared if its protocol
            has the same.
        save_models: Whether to keep the checkpoint of every run.
        jobs: Number of parallel runs, in processes that share the processors or GPUs of this machine: by default one,
            in this process; None for one per GPU or core, at most four.
        ray: Address of a Ray cluster to make the runs on.

    Raises:
        DataError: If `task` is not a task, the budget is too small for one run of each model, two models are the same,
            or a setting is invalid.
        TrainingError: If no run gives a score.
        LayerProbeError: If the model cannot be loaded, or a result cannot be written.
    """
    task, protocol = checked_task(task), patient(protocol)
    seeds = check_count(seeds)
    first = None if start is None else one_layer(start)
    if not isinstance(against_last, Integral) or against_last < 0:
        raise DataError(f"expected a number of seeds to compare with the last layer, 0 or more, got {against_last!r}")
    settings = SearchSettings(tolerance=tolerance, level=current().level, budget=budget, seeds=seeds)
    models = model if isinstance(model, list) else [model]
    resolved = resolve_all([*models, *model_tuple(reference)], items=task.readable) if models else []
    checkpoints = resolved[: len(models)]
    check_different(checkpoints)
    at_a_time = min(jobs_at_a_time(jobs, checkpoint) for checkpoint in checkpoints)
    costs = block_costs(checkpoints)
    n_blocks = [count_blocks(checkpoint.config) for checkpoint in checkpoints]
    folds = search_folds(task, settings, n_blocks, cross_validation)
    machines = choose_workers(
        checkpoints[0].asked,
        *sorted({Store(checkpoint.asked.cache_dir).root for checkpoint in checkpoints}),
        count=at_a_time,
        ray=ray,
        local="here" if at_a_time == 1 else "processes",
    )
    import_ahead(RunWorker.__module__, machines)  # in parallel with the readings
    references = [pooled_by(protocol, one) for one in resolved[len(models) :]]
    agreements = [agreed(protocol, checkpoint) for checkpoint in checkpoints]
    sets = [
        [run_set(shared, fold, how, save_models=save_models) for fold in folds]
        for how, checkpoint in agreements
        for shared in [SharedModel(checkpoint, items=task.readable, workers=machines)]
    ]
    whole_model = max(cost * (n + 1) for cost, n in zip(costs, n_blocks, strict=True))
    searching = sum(cost * settings.block_steps(n) for cost, n in zip(costs, n_blocks, strict=True))
    searching += 2 * against_last * whole_model
    reading = READING_SHARE * searching
    whole = reading + searching + final * whole_model
    runs = SearchRuns(machines, whole=searching)
    with part(start=0, share=reading, whole=whole):
        searched = [
            ModelSearch(of_model, task, runs, references=references, start=first, cost=cost)
            for of_model, cost in zip(sets, costs, strict=True)
        ]
    parts = tuple((len(fold.validation), links_of(fold.validation)) for fold in searched[0].folds)
    search = LayerSearch.of(SearchState(models=tuple(one.begun for one in searched), settings=settings, folds=parts))
    with runs, part(start=reading, share=searching, whole=whole):
        _search(search, searched, runs, at_a_time, against_last=against_last)
        finding, best = _found(search, searched, against_last=against_last)
        report("runs", 1, 1)
    with part(start=reading + searching, share=final * whole_model, whole=whole):
        return best.with_final(finding) if final else finding


def patient(protocol: Protocol | None) -> Protocol:
    """Return the protocol of the runs of a search, with its default patience unless it states one."""
    chosen = settings_or_default(protocol, Protocol)
    return replace(chosen, patience=PATIENCE) if chosen.patience is None else chosen


def jobs_at_a_time(jobs: int | None, checkpoint: Resolved) -> int:
    """Return the number of parallel runs of a search; by default one per GPU, or else per core, at most four.

    Parallel runs are chosen with less information, so that a search with more of them costs more for the same answer.
    A model that is already loaded stays in this process.
    """
    if jobs is not None:
        if not isinstance(jobs, Integral) or jobs < 1:
            raise DataError(f"expected a number of parallel runs, such as 2, got {jobs!r}")
        return jobs
    if checkpoint.loaded is not None:
        return 1
    device = resolve_device(checkpoint.asked.device)
    if device.type == "cpu":
        return min(available_cores(), MOST_JOBS)
    # a device with a number, such as cuda:1, is a single one
    return min(torch.cuda.device_count(), MOST_JOBS) if str(device) == "cuda" else 1


def search_folds(
    task: Task, settings: SearchSettings, n_blocks: Sequence[int], cross_validation: bool | None = None
) -> Sequence[Task]:
    """Return the tasks of the seeds in turn: with few validation examples, folds of the labelled ones by default."""
    few = len(task.validation) < SMALL_VALIDATION if cross_validation is None else cross_validation
    n_folds = folds_within(settings, n_blocks) if few else 1
    return folds_of(task, n_folds) if n_folds > 1 else (task,)


def folds_within(settings: SearchSettings, n_blocks: Sequence[int]) -> int:
    """Return the number of folds of a search: the average number of runs of a layer, at least two.

    A fold without a run of a layer says nothing about it. With fewer folds, each run is scored on more items, which
    cause more error than seeds, and trained on fewer. A full sweep has one fold per seed. Measured in
    research/statements.md, "Items before seeds". `n_blocks` are those of all models that share the budget.
    """
    steps = sum(map(settings.block_steps, n_blocks))
    sweeps = sum(map(settings.full_sweep, n_blocks))
    return min(settings.seeds, max(2, round(settings.seeds * steps / sweeps)))


def block_costs(checkpoints: Sequence[Resolved]) -> list[float]:
    """Return the cost of a block-step of each model relative to the largest, by parameters per block.

    If all blocks share their weights, all parameters of the model count.
    """
    block_sizes = []
    for checkpoint in checkpoints if len(checkpoints) > 1 else ():
        sizes = count_parameters(checkpoint.config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
        block_sizes.append((sizes[-1] - sizes[0]) / (len(sizes) - 1) or float(sizes[-1]))
    return [size / max(block_sizes) for size in block_sizes] or [1.0]


def _search(
    search: LayerSearch, searched: Sequence[ModelSearch], runs: SearchRuns, at_a_time: int, *, against_last: int
) -> None:
    """Make the requested runs and report their scores; spare workers make runs of the last layer.

    Parallel runs are reported in the order of their costs, not of their speed, so that a search can be repeated.
    """
    one = searched[0]
    most = against_last if len(searched) == 1 and not spoilt_items(one.task) else 0
    ends: dict[PlannedRun, float] = {}
    now = 0.0
    while True:
        asked = search.ask(at_a_time - len(ends))
        alone = len(asked) + len(ends) == 1 and not most and runs.workers.executor == "processes"
        for run in asked:
            ends[run] = now + searched[run.model].request(run, alone=alone)
        evidence = search.state.models[0]
        room = min(at_a_time - len(ends), most - one.ahead) if ends else 0
        if room > 0 and evidence.scored and posterior(evidence).best_layer != one.n_blocks:
            for seed in range(one.ahead, one.ahead + room):
                runs.requested.setdefault(one.job(one.n_blocks, seed), one.n_blocks + 1)
            one.ahead += room
        if not ends:
            return
        ended = min(ends, key=ends.__getitem__)
        now = ends.pop(ended)
        searched[ended.model].tell(search, ended)


def _found(search: LayerSearch, searched: Sequence[ModelSearch], *, against_last: int) -> tuple[Finding, ModelSearch]:
    """Return the finding of a search over one or several models, and the model that it keeps."""
    scored = [one for one in searched if search.state.models[one.begun.model].scored]
    if not scored:
        failed = (one.failed for one in reversed(searched) if one.failed)
        reason = next(failed, searched[0].unscored(search.state.models[0]))
        raise TrainingError(f"no run gave a score: {reason}")
    if len(searched) == 1:
        return searched[0].finding(search, against_last=against_last), searched[0]
    decision = search.state.decision
    for one in scored:
        one.tell_earlier(search)
    findings: dict[ModelSearch, Finding] = {}
    while (best := _best_of(search.state, scored)) not in findings:
        # runs of the comparison may make another model the best
        findings[best] = best.finding(search, against_last=against_last, decision=decision)
        best.model.forget()
    for other in scored:
        if other not in findings:
            findings[other] = other.finding(search, against_last=0, decision=decision)
            other.model.forget()
    return _finding_among(search.state, searched, {one: findings[one] for one in scored}, best), best


def _best_of(state: SearchState, scored: Sequence[ModelSearch]) -> ModelSearch:
    """Return the model with the layer of the highest expected score."""
    beliefs = side_by_side([posterior(state.models[one.begun.model]) for one in scored])
    return scored[bisect.bisect_right(beliefs.starts.tolist(), beliefs.best_layer) - 1]


def _finding_among(
    state: SearchState, searched: Sequence[ModelSearch], findings: Mapping[ModelSearch, Finding], best: ModelSearch
) -> Finding:
    """Return the finding of the best of several models, with those of the others and chances among all layers."""
    scored = [*findings]
    among = answers_among(
        [state.models[one.begun.model] for one in scored],
        [finding.answer for finding in findings.values()],
        state.settings,
        sizes=[finding.model.parameters for finding in findings.values()],
        spoilt=bool(spoilt_items(best.task)),
    )
    answers = [replace(finding, among=answer) for finding, answer in zip(findings.values(), among, strict=True)]
    place = scored.index(best)
    whole = sum(model.block_cost * state.settings.full_sweep(model.n_blocks) for model in state.models)
    lost = [
        f"{one.label} is left out: {one.unscored(evidence)}"
        for one, evidence in zip(searched, state.models, strict=True)
        if one not in findings
    ]
    result = replace(
        answers[place],
        others=(*answers[:place], *answers[place + 1 :]),
        place=place,
        share=sum(one.begun.block_cost * one.spent for one in searched) / whole,
        failures=(*lost, *(f"{one.label}: {failure}" for one in scored for failure in one.failures)),
    )
    sources = {name: one.item_source for name, one in zip(result.labels, answers, strict=True)}
    source = joined(sources, result.labels[place]) if all(sources.values()) else None
    return replace(result, item_source=source)


def plan_find(
    models: Sequence[ModelLike],
    task: Task,
    *,
    tolerance: float = TOLERANCE,
    budget: float | None = None,
    seeds: int = SEEDS,
    cross_validation: bool | None = None,
    against_last: int = 0,
    final: bool = False,
    protocol: Protocol | None = None,
    goes_on: bool = True,
    further: int = 0,
) -> Estimate | None:
    """Estimate the largest cost of `find` with these arguments, for one or several models; raises like `find`.

    With `goes_on`, None if a finished run exists, so that less is left than planned. `further` block-steps are
    fine-tuned in addition. Nothing is written.
    """
    resolved = resolve_all(models, items=task.readable) if models else []
    check_different(resolved)
    task, protocol = checked_task(task), patient(protocol)
    settings = SearchSettings(tolerance=tolerance, level=current().level, budget=budget, seeds=seeds)
    blocks = [count_blocks(checkpoint.config) for checkpoint in resolved]
    folds = search_folds(task, settings, blocks, cross_validation)
    fold = folds[0]
    n_labelled = len(task.train) + len(task.validation)
    agreements = [agreed(protocol, checkpoint) for checkpoint in resolved]
    folders = [run_folder(checkpoint, fold, tuned_by) for tuned_by, checkpoint in agreements]
    if goes_on and any(any(folder.glob(f"*/{RESULT}")) for folder in folders):
        return None

    def block_steps(n_blocks: int) -> float:
        # the layer to keep and the last one, if none of their runs is there
        most = settings.block_steps(n_blocks) + against_last * 2 * (n_blocks + 1)
        # no run is made twice, and the sweep has all runs except further seeds of that comparison
        others = 2 * max(against_last - seeds, 0) * (n_blocks + 1)
        final_run = final * (n_blocks + 1) * n_labelled / len(fold.train)
        return min(most, settings.full_sweep(n_blocks) + others) + further + final_run

    plans = [plan_tuning(model, fold, block_steps=block_steps, seeds=seeds, protocol=protocol) for model in resolved]
    notes = [
        data_use_sentences(
            [len(part) for part in (task.train, task.validation, task.test)],
            [len(fold.train), len(fold.validation)],
            KINDS[task.kind].unit,
            n_folds=len(folds),
            epochs=("at most " if agreements[0][0].patience else "") + counted(protocol.epochs, "epoch"),
            few=SMALL_VALIDATION if cross_validation is None else None,
        )
    ]
    if final:
        notes.append(
            f"Then the layer to keep is fine-tuned once more on all {n_labelled:,} training and validation examples."
        )
    plans = [*(replace(plan, details=()) for plan in plans[:-1]), replace(plans[-1], details=tuple(notes))]
    return plans[0] if len(plans) == 1 else together(plans, "They share this budget, about {} in total.")
