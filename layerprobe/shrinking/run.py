"""Shrink a model on texts, and measure its loss on a task."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from layerprobe.checks import Seeds, check_seeds, settings_or_default
from layerprobe.context import part, report
from layerprobe.encoders.architecture import check_blocks, count_blocks, count_parameters, declared_dtype
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH
from layerprobe.encoders.graphs import MEASURED_TEXTS, SECONDS
from layerprobe.encoders.graphs import ROUNDS as TIMING_ROUNDS
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import SharedModel, choose_workers
from layerprobe.encoders.model import Model
from layerprobe.encoders.timing import ROUNDS, Speedup
from layerprobe.encoders.vocabulary import FEW_MISSING, missing_share
from layerprobe.errors import DataError, option
from layerprobe.extraction.check import missing_sentence
from layerprobe.extraction.embeddings import extract, reading_cautions
from layerprobe.files.images import readable_as
from layerprobe.finetuning.runs import MODEL, RunJob, RunSet, RunWorker, agreed, run_set, runs_plan
from layerprobe.finetuning.tuning import plan_tuning
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.jobs.crew import HERE, make_crew, results
from layerprobe.metrics.names import Split
from layerprobe.names import counted, short_name, times_as_fast
from layerprobe.profiling.run import profile_layers
from layerprobe.profiling.values import ProfileSettings
from layerprobe.results.shown import Estimate
from layerprobe.shrinking.points_lost import Compared, has_untrained_outputs, served
from layerprobe.shrinking.teacher import (
    N_TEXTS,
    TEACHER,
    Taught,
    Vectors,
    agreement,
    embedder,
    fewer,
    kept_order,
    n_held_out,
    split_texts,
    tokenized,
    tokens_to_keep,
    write_dense,
)
from layerprobe.shrinking.values import (
    CORPUS,
    TRAINING,
    UNLIKE,
    Removal,
    Served,
    ShrinkSettings,
    Shrunk,
    Size,
    Smaller,
    SmallerVocabulary,
    dense_name,
    read_size,
    read_vocabulary,
)
from layerprobe.store.store import Store
from layerprobe.tasks.cells import plain
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.explored import ItemSource
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.quality import distinct_texts
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task, TextFile

logger = logging.getLogger(__name__)

Texts = Sequence[str] | Items | TextFile
FITTED = 5000
"""Most texts for fitting fewer dimensions."""
SIZES, FITTED_SIZES = 6, 2000
"""Most numbers of blocks whose untrained models are scored, and most texts for fitting their fewer
dimensions."""
WAYS = 7
"""Most timed ways to run a model: torch, two backends, and two 8-bit variants of each backend."""
EXPORTING = 0.6e-6
"""Seconds per parameter for writing an 8-bit graph on one core (MiniLM's 22.6 M: 13)."""
NO_TEACHER = 5.0
"""Correlation x 100 of the whole model's untrained cosines below which its embeddings are useless for the task."""
TOKENS = 32
"""Tokens of the texts for measuring speed, or the model's limit if lower."""
TIMED = ProfileSettings(batch_sizes=(32,), rounds=ROUNDS, repeats=3, max_seconds=0.5)


def shrink(
    model: ModelLike,
    texts: Texts,
    task: Task | None = None,
    *,
    size: Size | None = None,
    tune: Protocol | bool = False,
    seeds: Seeds = 1,
    protocol: Protocol | None = None,
    settings: ShrinkSettings | None = None,
    ray: str | None = None,
) -> Shrunk:
    """Remove blocks and tokens from a model, train the rest to agree with it, and measure the loss.

    Blocks are removed one by one: each time the one without which the similarities between some of the
    texts agree most with the whole model's. The rest is trained on the whole model's embeddings of the texts, without
    labels, see `LikeTeacher`. With a task, the loss is measured on its test split, with an interval over items and
    seeds; without one, agreement on held-out texts is reported, which is not a task. In retrieval, the smaller model is
    also measured on queries alone, see `Smaller.asymmetric`. Finished runs are not repeated.

    Args:
        model: A name, a folder or a `Model`; its last layer is the teacher. If an earlier layer is better after
            fine-tuning, find and export that first.
        texts: Training texts, at least a few thousand, similar to the model's later inputs; labels are not needed.
        task: Task that the smaller model must still do.
        size: Number of blocks to keep, the blocks themselves, at most `50%` of the parameters, or `2x` as fast. By
            default the fewest blocks whose loss is within the margin on the validation split, searched by
            halving; without a task, half of them, or `all` with a vocabulary.
        tune: Also fine-tune both on the task, with the paper's protocol or the given one, and its length. The loss
            after fine-tuning then counts.
        seeds: Number of training seeds, or the seeds.
        protocol: Protocol of the training on embeddings; pooling and length are the model's.
        settings: Acceptable loss, numbers of tokens and dimensions to keep, and whether to measure backends and 8
            bits.
        ray: Address of a Ray cluster for training the seeds.

    Raises:
        ModelError: If the model cannot be loaded or has no such blocks.
        UnsupportedArchitectureError: If its blocks cannot be removed.
        DataError: If there are too few texts, a size cannot be reached, or the whole model fails on the task.
        TrainingError: If a run fails.
        StoreError: If a result cannot be written.
    """
    settings = settings_or_default(settings, ShrinkSettings)
    work = _Work(model, texts, task, size, seeds, protocol, tune, settings, ray)
    target = work.target
    if settings.front and (work.whole.encoder.reader is not None or work.whole.encoder.device.type != "cpu"):
        raise DataError(f"expected a text model on a CPU to measure backends and 8 bits: omit {option('front', True)}")
    work.check_teacher()
    work.teach()
    removals: tuple[Removal, ...] = ()
    if isinstance(target, tuple):
        work.kept = {len(target): target}
    else:
        with part(start=1, share=1, whole=10):
            removals = work.order()
        work.kept = {len(removal.kept): removal.kept for removal in removals}
        if work.vocabulary is not None:
            work.kept[work.n_blocks] = work.every_block
    with part(start=2, share=5, whole=10):
        chosen = _sought(work) if target is None else len(target) if isinstance(target, tuple) else target
    if chosen not in work.kept:
        sizes = ", ".join(map(str, sorted(work.kept)))
        raise DataError(f"expected {sizes} blocks, the sizes that this model allows, got {chosen}")
    with part(start=7 if target is None else 2, share=3 if target is None else 8, whole=10):
        best = work.measured(chosen, "test", work.seeds)
        front = tuple(work.ways(chosen)) if settings.front else ()
    tried = [best if k == chosen else smaller for k, smaller in sorted({**work.tried, chosen: best}.items())]
    return Shrunk(
        model=work.description,
        texts=texts.name if isinstance(texts, TextFile) else "the texts",
        n_texts=len(work.taught.train),
        n_held_out=len(work.taught.test),
        task=None if task is None else task.name,
        within=settings.within,
        seeds=work.seeds,
        protocol=work.protocol,
        removals=removals,
        tried=tuple(tried),
        chosen=tried.index(best),
        dimensions=settings.dimensions,
        vocabulary=work.vocabulary,
        front=front,
        prompts=cast(Any, work.compared).prompted.test.prompts if best.asymmetric else None,
        warnings=tuple(work.warnings(best)),
        item_source=work.item_source,
    )


def plan_shrinking(
    model: ModelLike,
    texts: Texts,
    task: Task | None = None,
    *,
    size: Size | None = None,
    tune: Protocol | bool = False,
    seeds: Seeds = 1,
    protocol: Protocol | None = None,
    settings: ShrinkSettings | None = None,
) -> Estimate:
    """Time a few steps and estimate the longest duration of `shrink`; the arguments are the same."""
    settings = settings_or_default(settings, ShrinkSettings)
    work = _Work(model, texts, task, size, seeds, protocol, tune, settings)
    target, blocks, more = work.target, work.n_blocks, len(work.seeds) - 1
    sizes = _most_sizes(0, blocks) if target is None else [len(target) if isinstance(target, tuple) else target]
    steps = 0 if work.untrained(blocks) and sizes == [blocks] else sum(k + 1 for k in sizes) + more * (sizes[-1] + 1)
    # a step costs about three forward passes: all texts go through the whole model once, some through each
    # model without one block
    passes = 1 if isinstance(target, tuple) and not settings.front else 1 + N_TEXTS / len(work.texts) * blocks**2 / 3
    # the whole model and every trained one are scored
    scored = _scored_share(work.texts, task, settings.dimensions)
    passes += scored * (1 + steps / (blocks + 1))
    n_measured, more_passes, exporting = _front_costs(work, sizes, scored) if settings.front else (0, 0.0, 0.0)
    passes += more_passes
    some = work.texts[:: max(1, len(work.texts) // 400)][:400]
    drawn = np.random.default_rng(0).normal(size=(len(some), work.description.hidden_size))
    timed = split_texts(some, drawn.astype(np.float32), "timed")
    all_steps = (steps + (blocks + 1) * passes / 3 / work.protocol.epochs) * len(work.texts) / len(timed.train)
    work.whole.forget()  # fine-tuning loads its own model
    plans = [plan_tuning(work.checkpoint, timed, block_steps=lambda _: all_steps, protocol=work.protocol)]
    if work.compared is not None and work.compared.tuning is not None:
        tuned, tuning = steps + (1 + more) * (blocks + 1), work.compared.tuning
        whole = work.checkpoint.with_options(max_length=None)
        plans.append(plan_tuning(whole, work.compared.task, block_steps=lambda _: tuned, protocol=tuning))
    how = plans[0]["computed_on"]
    further = f"; {n_measured} models are measured for {option('front', True)}" if settings.front else ""
    n_texts, n_sizes, n_seeds = len(work.texts), len(sizes), len(work.seeds)
    return Estimate(
        title=f"Making {short_name(work.checkpoint.label)} smaller",
        seconds=exporting + sum(plan.seconds or 0.0 for plan in plans),
        load=max(plan.load for plan in plans),
        computed_on=f"{how}: {n_texts:,} texts are embedded once, and {counted(n_sizes, 'size')} trained with "
        f"{counted(n_seeds, 'seed')}{further}",
        numbers={
            "model": work.checkpoint.label,
            **({} if work.vocabulary is None else {"tokens": work.vocabulary.kept}),
            "n_texts": n_texts,
            "sizes": n_sizes,
            "seeds": n_seeds,
            "computed_on": how,
            "front": settings.front,
        },
    )


def _scored_share(texts: Sequence[str], task: Task | None, dimensions: int | None) -> float:
    """Return the amount of text embedded for scoring and for fewer dimensions, relative to the training texts."""
    share = 0.0 if dimensions is None else min(FITTED / len(texts), 1)
    if task is None or not has_untrained_outputs(task.kind):
        return share
    train, validation, test = (sum(map(len, task.texts(split))) for split in ("train", "validation", "test"))
    fitted = 2 * train if KINDS[task.kind].zero_shot == "probe" else 0
    return share + (validation + test + fitted) / sum(map(len, texts))


def _front_costs(work: _Work, sizes: Sequence[int], scored: float) -> tuple[int, float, float]:
    """Return, for `_Work.ways`, the number of measured models, their passes over all texts, and further seconds.

    Args:
        work: The checked arguments.
        sizes: Numbers of blocks to train, the chosen one last.
        scored: The amount of text for scoring a model, relative to the training texts.
    """
    blocks, n_texts, seeds, untrained = work.n_blocks, len(work.texts), len(work.seeds), list[int]()
    if work.compared is not None and has_untrained_outputs(work.compared.task.kind):
        counts = {*sizes, *_some(range(1, blocks + 1), SIZES)}
        untrained = sorted(counts) * (1 if work.vocabulary is None else 2) + [k for k in sizes[:-1] if seeds == 1]
    timed, rounds = [blocks] + [sizes[-1]] * seeds, TIMING_ROUNDS[0] * MEASURED_TEXTS / n_texts
    share = scored + (n_held_out(n_texts) + min(FITTED, n_texts)) / n_texts
    passes = 2 * share * sum(untrained) + WAYS * (share + rounds) * sum(timed)
    exported = sum(work.description.parameters[k] for k in (*untrained, *timed, *timed))
    return len(untrained) + len(timed), passes / blocks, EXPORTING * exported + SECONDS * len(timed[:2])


def _most_sizes(low: int, high: int) -> list[int]:
    """Return the sizes that `_sought` tries if no loss is within the margin: the largest number of sizes."""
    k = (low + high) // 2
    return [k, *_most_sizes(k, high)] if high - low > 1 else []


def _apart(texts: Sequence[str], task: Task | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts outside the validation and test splits of the task, and a warning about the others."""
    splits: tuple[Split, ...] = () if task is None else ("validation", "test")
    where = {plain(text): split for split in splits for side in cast(Task, task).split(split).sides for text in side}
    places = [where.get(plain(text)) for text in texts]
    counts = [f"{places.count(split):,} in its {split} split" for split in splits[::-1] if split in places]
    if task is None or not counts:
        return tuple(texts), ()
    overlap = f"of {len(texts):,} texts to train on, the task has {' and '.join(counts)}"
    if task.keep_overlaps:
        return tuple(texts), (f"{overlap}; they are kept, so the loss is too optimistic",)
    left = tuple(text for text, split in zip(texts, places, strict=True) if split is None)
    return left, (f"{overlap}: removed; {option('keep_overlaps', True)} keeps such texts",)


def _some(numbers: Sequence[int], most: int) -> list[int]:
    """Return some numbers at equal distances, including both ends."""
    n = min(most, len(numbers))
    return [numbers[round(i * (len(numbers) - 1) / (n - 1))] for i in range(n)]


class _Work:
    """State of one `shrink`: the checked arguments, the teacher, and the sizes so far."""

    taught: Task
    """The texts with the whole model's embeddings."""
    item_source: ItemSource | None = None
    """Source of a page's test items."""

    def __init__(
        self,
        model: ModelLike,
        texts: Texts,
        task: Task | None,
        size: Size | None,
        seeds: Seeds,
        protocol: Protocol | None,
        tune: Protocol | bool,
        settings: ShrinkSettings,
        ray: str | None = None,
    ) -> None:
        """Check all arguments; the model reads and pools by the protocol."""
        parsed, wanted, dimensions = read_size(size), read_vocabulary(settings.vocabulary), settings.dimensions
        if tune and task is None:
            raise DataError("expected a task to fine-tune on, got none")
        if tune and dimensions is not None:
            given = f"{option('dimensions', str(dimensions))} and {option('tune', True)}"
            raise DataError(f"expected fewer dimensions or fine-tuning, got {given}: fine-tuning uses all dimensions")
        distinct = distinct_texts(texts.texts if isinstance(texts, TextFile) else texts)
        task = None if task is None else checked_task(task)
        self.texts, self.left_out = _apart(distinct, task)
        checkpoint = resolve(model, items=readable_as(distinct))
        protocol, checkpoint = agreed(TRAINING if protocol is None else protocol, checkpoint)
        # the whole model, the smaller one and its export read texts alike
        length = checkpoint.max_length or DEFAULT_MAX_LENGTH
        protocol = replace(protocol, max_length=length)
        checkpoint = checkpoint.with_options(pooling=protocol.pooling, max_length=length)
        if count_blocks(checkpoint.config) < 2:
            raise DataError(f"expected a model of at least two blocks, got {checkpoint.label} with one")
        least = protocol.batch_size + 2 * n_held_out(len(self.texts))
        if len(self.texts) < least:
            left = " that the task does not test" if self.left_out else ""
            raise DataError(
                f"expected at least {least} different texts, {protocol.batch_size} for a step and the rest to measure "
                f"on, got {len(self.texts)}{left}: use more texts, at least a few thousand, or a smaller batch"
            )
        self.whole = SharedModel(checkpoint)
        self.compared: Compared | None = None
        if task is not None:
            uncut = checkpoint.with_options(max_length=None)  # fine-tuning truncates by its own protocol
            tuning = agreed(None if tune is True else tune, uncut)[0] if tune else None
            if tuning is None and not has_untrained_outputs(task.kind):
                raise DataError(
                    f"a task of kind {task.kind} is only scored after fine-tuning: add {option('tune', True)}"
                )
            self.compared = Compared(whole=self.whole, task=task, tuning=tuning, margin=settings.within)
        root = Store(checkpoint.asked.cache_dir).root
        self.workers = HERE if ray is None else choose_workers(checkpoint.asked, root, ray=ray)
        self.checkpoint, self.protocol = checkpoint, protocol
        self.seeds = tuple(dict.fromkeys(check_seeds(seeds)))
        self.description, self.dimensions = self.whole.encoder.description, dimensions
        self.n_blocks = self.description.n_blocks
        self.every_block = tuple(range(1, self.n_blocks + 1))
        width = self.description.hidden_size
        if dimensions is not None and not 1 <= dimensions < width:
            raise DataError(f"expected 1 to {width - 1} dimensions of {checkpoint.label} to keep, got {dimensions}")
        self.cut = checkpoint
        self.vocabulary = None if wanted is None else self._without_tokens(wanted)
        self.tried = dict[int, Smaller]()
        self.kept = dict[int, tuple[int, ...]]()  # kept blocks by their number
        self.target = _target(self, parsed)

    def _without_tokens(self, wanted: Any) -> SmallerVocabulary:
        """Remove tokens from the model whose blocks are trained; return the kept ones."""
        if self.checkpoint.modality != "text":
            raise DataError(f"expected a text model to reduce its vocabulary, got {self.checkpoint.label}")
        task = None if self.compared is None else self.compared.task
        of_task = () if task is None else _apart(task.texts("train"), task)[0]
        tokens, missing = tokens_to_keep(self.checkpoint, list(dict.fromkeys((*self.texts, *of_task))), wanted)
        self.cut = self.checkpoint.with_tokens(tokens)
        tested = None if self.compared is None else self.compared.some_texts(N_TEXTS)
        return SmallerVocabulary(
            kept=len(tokens),
            whole=self.cut.n_tokens or 0,
            missing=missing,
            missing_on_task=None if tested is None else missing_share(self.cut.tokenizer, tested),
        )

    @property
    def parameters(self) -> tuple[int, ...]:
        """Parameters by number of blocks, without removed tokens."""
        if self.vocabulary is None:
            return self.description.parameters
        return count_parameters(self.cut.config, trust_remote_code=self.cut.pinned["trust_remote_code"])

    def untrained(self, k: int) -> bool:
        """Return whether the model of `k` blocks needs no training, because it equals the whole one on all texts."""
        return k == self.n_blocks and self.vocabulary is not None and not self.vocabulary.missing

    def teach(self) -> None:
        """Embed the texts, or load them from the store."""
        self.whole.forget()  # extraction loads its own model
        with part(start=0, share=1, whole=10):
            stored = extract(self.checkpoint, self.texts)
        last = np.asarray(stored.layer(stored.n_layers - 1), dtype=np.float32)
        self.taught = split_texts(self.texts, last[stored.rows(self.texts)], "texts")

    def order(self) -> tuple[Removal, ...]:
        """Return the order in which blocks are removed."""
        return kept_order(self.whole, self.taught.validation.texts)

    def check_teacher(self) -> None:
        """Raise DataError if the whole model's embeddings are useless for the task."""
        score = None if self.compared is None else self.compared.untrained_cosines()
        if score is not None and score <= NO_TEACHER:
            raise DataError(
                f"the embeddings of {self.checkpoint.label} score {score:.1f} on the task without fine-tuning, so they "
                "are no teacher for it: expected a sentence encoder; fine-tune it first with `layerprobe find "
                "--save-models`, export that, and shrink the export"
            )

    def runs(self, k: int, model: Resolved) -> RunSet:
        """Return the runs of the training of a model of `k` blocks."""
        taught, protocol = self.taught, self.protocol
        if self.untrained(k):
            # one step that changes nothing, to have a regular run
            few = Taught.of(taught.train.texts[: protocol.batch_size], taught.train.gold[: protocol.batch_size])
            taught = replace(taught, train=few)
            protocol = replace(protocol, epochs=1, evaluations=1, learning_rate=1e-60)
        return run_set(SharedModel(model, workers=self.workers), taught, protocol, save_models=True)

    def trained(self, k: int, seeds: Sequence[int]) -> list[FineTuningRun]:
        """Train the model of `k` blocks, or load finished runs."""
        self.whole.forget()  # training loads its own model
        runs, jobs = self.runs(k, self.cut.with_blocks(self.kept[k])), {RunJob(k, seed): 1.0 for seed in seeds}
        with make_crew(RunWorker, (runs,), self.workers, most=len(jobs)) as crew:
            return [run for (run,) in results(runs_plan((runs,), jobs, unit="seeds"), crew).values()]

    def model_of(self, directory: Path, k: int) -> tuple[SharedModel, Vectors | None]:
        """Return a trained model, and the map of its embeddings to fewer dimensions, which is written beside it.

        It is read like the whole one, because its folder lacks that configuration.
        """
        model = self._saved(directory, self.cut.with_blocks(self.kept[k]).label)
        if self.dimensions is None:
            return model, None
        weight = fewer(embedder(model)(tokenized(model, self.taught.train.texts[:FITTED])), self.dimensions)
        write_dense(directory / dense_name(self.dimensions), weight)
        return model, weight

    def _saved(self, directory: Path, label: str) -> SharedModel:
        smaller = Model(str(directory / MODEL), display_name=f"{label}, trained", end_token=False)
        return SharedModel(resolve(smaller.like(self.checkpoint.settled)))

    def ways(self, chosen: int) -> Iterator[Served]:
        """Yield the whole model and the chosen one on every backend and, on a task, models of other sizes.

        These have fewer blocks, tokens, dimensions or bits; untrained, or trained if finished runs exist.
        """
        width, texts = self.description.hidden_size, self.taught.train.texts
        declared = declared_dtype(self.checkpoint.whole or self.checkpoint.config)
        scored = self.compared is not None and has_untrained_outputs(self.compared.task.kind)
        narrow = self.dimensions or (max(1, width // 3) if scored else width)
        blocks, models = self.kept | {self.n_blocks: self.every_block}, [(self.checkpoint, self.n_blocks)]
        if scored:
            blocks = {len(removal.kept): removal.kept for removal in self.order()} | blocks
            counts = sorted({chosen, *self.tried, *_some(sorted(blocks), SIZES)}, reverse=True)
            models = [*itertools.product([self.checkpoint, self.cut][: 1 if self.vocabulary is None else 2], counts)]
        models += [(self.cut, chosen)] * ((self.cut, chosen) not in models)
        for number, (cut, k) in enumerate(models):
            report("scoring smaller models", number, len(models))
            is_whole, is_chosen = cut is self.checkpoint and k == self.n_blocks, (cut, k) == (self.cut, chosen)
            one = cut.with_blocks(blocks[k])
            untrained = [self.whole if is_whole else SharedModel(one)] if scored or is_whole else []
            for made, timed in ((untrained, is_whole), (self._finished(k, one), is_chosen)):
                if made and (scored or timed):
                    fitted = texts[: FITTED if timed else FITTED_SIZES]
                    held_out, dimensions = cast(Taught, self.taught.test), sorted({width, narrow}, reverse=True)
                    measured_on = self.compared, held_out, fitted, dimensions, declared
                    yield from served(made, blocks[k], *measured_on, trained=made is not untrained, timed=timed)
                for model in made:
                    model.forget()

    def _finished(self, k: int, model: Resolved) -> list[SharedModel]:
        """Return the trained models of `k` blocks, one per seed, if all are in the store."""
        runs, jobs = self.runs(k, model), [RunJob(k, seed) for seed in self.seeds]
        return [self._saved(runs.directory(job), model.label) for job in jobs] if all(map(runs.read, jobs)) else []

    def measured(self, k: int, split: str, seeds: Sequence[int]) -> Smaller:
        """Return the model of `k` blocks with its loss on a split of the task; on test with its speed as well."""
        with part(start=0, share=1, whole=2):
            made = self.trained(k, seeds)
        models = [self.model_of(run.directory, k) for run in made]
        ways = [(model, embedder(model, dense=weight)) for model, weight in models]
        alike = [run.test for run in made]
        if self.dimensions is not None:
            held_out = self.taught.test
            vectors = [embed(tokenized(model, held_out.texts)).astype(np.float64) for model, embed in ways]
            alike = [evaluate_outputs(TEACHER.name, embeddings, held_out.gold).metrics for embeddings in vectors]
        compared, on_task, speed = self.compared, None, None
        with part(start=1, share=1, whole=2):
            losses = {} if compared is None else compared.losses(ways, seeds, split)
        if split == "validation":
            losses = {"chosen_by": losses.get("tuned", losses.get("as_it_is"))}
        else:
            losses["chosen_by"] = self.tried[k].chosen_by if k in self.tried else None
            if compared is not None:
                self.item_source = compared.item_source()
                both, texts = (ways[0], (self.whole, embedder(self.whole))), compared.some_texts(N_TEXTS)
                on_task = 100 * agreement(*(embed(tokenized(model, texts)) for model, embed in both))
            if k < self.n_blocks:  # a smaller vocabulary saves no time
                speed = self.speeds([k])[k]
        return Smaller(
            blocks=self.kept[k],
            parameters=models[0][0].encoder.description.parameters[-1],
            speed=speed and speed[0],
            speed_range=speed and speed[1:],
            folders=tuple(str(run.directory) for run in made),
            agreement=tuple(metrics["agreement"] for metrics in alike),
            neighbours=tuple(metrics["neighbours"] for metrics in alike),
            on_task=on_task,
            **losses,
        )

    def speeds(self, sizes: Sequence[int]) -> dict[int, Speedup]:
        """Return the speed-up over the whole model, by number of blocks."""
        encoder, pooling = self.whole.encoder, self.protocol.pooling
        lengths = None if encoder.reader is not None else (encoder.limit(TOKENS),)
        settings = replace(TIMED, lengths=lengths)
        *fast, slow = profile_layers(encoder, (*sizes, self.n_blocks), settings, pooling=pooling)
        return {layer.layer: layer.costs[0].faster_than(slow.costs[0]) for layer in fast}

    def warnings(self, small: Smaller) -> list[str]:
        """Return warnings for the user."""
        warnings, vocabulary = [*reading_cautions(self.checkpoint, self.texts), *self.left_out], self.vocabulary
        if vocabulary is not None and (missing := vocabulary.missing_on_task or 0) > FEW_MISSING:
            warnings.append(f"of the task's texts, {missing_sentence(missing, vocabulary.tokens)}")
        if small.on_task is None or min(small.agreement) - small.on_task <= UNLIKE:
            return warnings
        return [
            *warnings,
            f"on the task's texts the smaller model agrees with the whole one by {small.on_task:.1f}, on held-out "
            f"texts by {min(small.agreement):.1f}: the two differ; train on texts of the task's domain and language",
        ]


def _target(work: _Work, parsed: Any) -> int | tuple[int, ...] | None:
    """Return the requested number of blocks, or the blocks; None to search for the number."""
    n_blocks, name, cut = work.n_blocks, work.checkpoint.label, work.vocabulary is not None
    most = n_blocks if cut else n_blocks - 1
    if parsed == "all" or (parsed is None and work.compared is None and cut) or (parsed == n_blocks and cut):
        parsed = work.every_block
    match parsed:
        case None:
            return None if work.compared is not None else n_blocks // 2
        case int() if not 1 <= parsed <= most:
            raise DataError(f"expected 1 to {most} blocks of {name} to keep, got {parsed}")
        case (float(least), "%"):
            left, of_whole = work.parameters, work.description.parameters[-1]
            fits = [k for k in range(1, most + 1) if left[k] <= least * of_whole]
            reached = f"a model of one block has {100 * left[1] / of_whole:.1f} % of the parameters"
        case (float(least), "x"):
            speeds = work.speeds(range(1, n_blocks))
            fits = [k for k, (_, lower, _) in speeds.items() if lower >= least]
            reached = f"a model of one block is {times_as_fast(speeds[1])}"
        case tuple():
            check_blocks(work.checkpoint.config, parsed, name=name)
            if len(parsed) > most:
                raise DataError(
                    f"expected fewer than the {n_blocks} blocks of {name}, or a smaller vocabulary, "
                    f"{option('vocabulary', CORPUS)}, got all of them"
                )
            return parsed
        case _:
            return int(parsed)
    if not fits:
        size = f"{100 * least:g}%" if parsed[1] == "%" else f"{least:g}x"
        raise DataError(f"this size cannot be reached: {reached}, got {size}{_tokens_that_fit(work, parsed)}")
    return max(fits)


def _tokens_that_fit(work: _Work, wanted: tuple[float, str]) -> str:
    """Return in words how many tokens, in hundreds, leave room for half of the blocks in a share of the parameters."""
    config, whole, blocks = work.checkpoint.config, work.description.parameters, work.n_blocks // 2
    width = getattr(config, "embedding_size", work.description.hidden_size)
    tokens = getattr(config, "vocab_size", 0)
    room = int((wanted[0] * whole[-1] - whole[blocks] + tokens * width) / width) // 100 * 100
    if wanted[1] != "%" or not 0 < room < tokens:
        return ""
    return f"; {blocks} of {work.n_blocks} blocks fit with {option('vocabulary', str(room))}"


def _sought(work: _Work) -> int:
    """Return the fewest blocks whose loss is significantly within the margin on the validation split, by halving.

    If no tried size is, return the largest.
    """
    low, high = 0, max(work.kept) + 1
    most = high.bit_length()
    while high - low > 1:
        k = (low + high) // 2
        if k not in work.kept:
            low = k
            continue
        with part(start=len(work.tried), share=1, whole=most):
            work.tried[k] = work.measured(k, "validation", work.seeds[:1])
        loss = work.tried[k].chosen_by
        lost = "" if loss is None else f"{loss.value:.2f}"
        logger.info("%d of %d blocks: %s points lost on the validation split", k, work.n_blocks, lost)
        low, high = (low, k) if loss is not None and loss.verdict == "within" else (k, high)
    return high if high in work.kept else max(work.kept)
