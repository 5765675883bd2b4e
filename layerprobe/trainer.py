"""Score every layer of a model while sentence-transformers trains it, and truncate such a model at a layer.

Knows loaded models of sentence-transformers, and tasks; knows no store. Layers are located in a forward pass,
and compared with truncated models when an evaluator first meets a model, not at each evaluation.
"""

import contextlib
import copy
import csv
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from layerprobe.checks import check_choice, check_extra, check_present, one_layer
from layerprobe.context import current, settings
from layerprobe.encoders.architecture import Stack, count_blocks, refusal
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.in_memory import is_loaded, model_and_tokenizer
from layerprobe.encoders.loading import READABLE, load_encoder, look
from layerprobe.encoders.recipe import loaded_recipe
from layerprobe.errors import DataError, DegenerateLayerError, MissingPackageError, ModelError
from layerprobe.export.folder import FOR_ANY_LAYER, check_modules, with_pooler
from layerprobe.files.images import readable_as
from layerprobe.finetuning.step import merge_adapters
from layerprobe.metrics.names import bounded
from layerprobe.names import plural
from layerprobe.results.shown import OneLayer
from layerprobe.rng import plain_torch, seeded
from layerprobe.similarity.checks import finite_matrix
from layerprobe.stats.crossed import Links, crossed, errors_known
from layerprobe.tasks.evaluation import Array, Evaluation, Layer, evaluate_outputs, links_of, outputs_of_layer
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task, TextSplit

try:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
except ImportError:  # reported where they are used
    BaseEvaluator = SentenceTransformer = object  # type: ignore[assignment, misc]

logger = logging.getLogger(__name__)

Heads = Literal["last", "every"]
Primary = Literal["best", "mean"]
Groups = Mapping[Any, Sequence[int]] | Sequence[object]
MOST_ITEMS = 10_000
"""Largest number of items in the file of items."""
FEW_ITEMS = 5
"""Effective number of items up to which a change has at least the error of one of them, see `least_variance`: where one
query of ten or fewer changes, of 50, Student's interval alone covers 77 to 92 % at a level of 95 %; this one 99 %."""


class LayerEvaluator(BaseEvaluator):
    """Score every layer of a model on a task while sentence-transformers trains it, in one pass over the texts.

    For `SentenceTransformerTrainer(evaluator=...)`. Layer l is scored as the model from `truncate` at l, with the
    metrics of the kind of task, 0 .. 1: `{name}_layer_3_spearman_cosine`; `{name}_best_layer`, its score
    `{name}_best_spearman_cosine` with the ends of its interval over items, `..._low` and `..._high`; and the mean over
    layers, `{name}_mean_spearman_cosine`. Pairs, triplets and documents are scored by cosines, classes and numbers by
    a probe refitted on the train split each time (`..._accuracy_probe`). A layer that cannot be scored is NaN.
    Modes of modules, hooks, random numbers, device and precision stay as they were.

    From the second evaluation on, `{name}_change` is the change of the `primary` score since the one before, with the
    ends of its interval over items, paired; the best layer may be another one than before. `items` has columns by item:
    the values whose mean is the score of a layer, such as each query's nDCG, and the cosines of pairs.

    Args:
        task: A task from `load_task`, of a kind that can be scored untrained with one embedding per text.
        split: Split to score; by default validation, or all of data without predefined splits where nothing is fitted.
        name: Prefix of the metrics' names and part of the file's name.
        batch_size: Texts per batch.
        primary: Score that chooses checkpoints: the best layer's, the mean, or one layer's.
        heads: Layers followed by Dense and LayerNorm: the last, as in an export, or every one, as
            `AdaptiveLayerLoss` trains them.
        truncate_dim: Features to keep of an embedding, as in `MatryoshkaLoss`; by default the model's own.
        write_csv: Whether each evaluation adds a row to a file in the trainer's folder.
        write_items: Whether each adds its `items`, the first 10,000, to another file there.
        groups: The name of each item's group, or rows of the split by name. Each group has the `primary` score, its
            change, and their intervals: `{name}_group_short_spearman_cosine`, `{name}_group_short_change`.

    Raises:
        LayerProbeError: If sentence-transformers is not installed, or the task, split or choice is unsupported; when
            called, if the model's layers differ from its truncations, or an export could not keep its modules.
    """

    def __init__(
        self,
        task: Task,
        *,
        split: TextSplit | None = None,
        name: str = "",
        batch_size: int = 32,
        primary: int | Primary = "best",
        heads: Heads = "last",
        truncate_dim: int | None = None,
        write_csv: bool = True,
        write_items: bool = True,
        groups: Groups = (),
    ) -> None:
        _check_installed("LayerEvaluator")
        super().__init__()  # type: ignore[no-untyped-call]
        self.task = checked_task(task)
        self.kind = kind = KINDS[self.task.kind]
        if kind.zero_shot == "own" and kind.learning().outputs is None:
            raise DataError(f"expected a task scored by embeddings of texts, got one of kind {kind.name}")
        self.split: TextSplit = split or ("all" if self.task.one_piece and not kind.fits else "validation")
        check_choice(self.split, TextSplit, name="split")
        check_choice(heads, Heads, name="heads")
        if isinstance(primary, str):
            check_choice(primary, Primary, name="primary")
        if kind.zero_shot == "probe" and self.split in ("train", "all"):
            raise DataError(f"expected the validation or the test split (a probe is fitted on train), got {split}")
        if readable_as(self.task.split(self.split).texts) != "text":
            raise DataError("expected a task of texts, got one of images")
        whole = isinstance(truncate_dim, Integral) and not isinstance(truncate_dim, bool)
        if truncate_dim is not None and (not whole or truncate_dim < 1):
            raise DataError(f"expected truncate_dim as a whole number from 1, got {truncate_dim!r}")
        self.name, self.batch_size, self.heads, self.truncate_dim = name, batch_size, heads, truncate_dim
        self.primary = primary if isinstance(primary, str) else one_layer(primary)
        in_file = f"layer_evaluation{'_' * bool(name)}" + re.sub(r"[\\/:]+", "-", name)  # names of the Hub have a slash
        self.write_csv, self.csv_file = write_csv, f"{in_file}_results.csv"
        self.write_items, self.items_file = write_items, f"{in_file}_items.csv"
        self.items: dict[str, Any] = {}
        self._parts = _parts(self.task.split(self.split), groups, f"{plural(kind.unit)} of {self.split}")
        self._before: dict[tuple[Any, ...], tuple[float, Array]] = {}
        self._known: tuple[Any, Stack] | None = None
        self._warned: set[int] = set()

    def __call__(  # type: ignore[override]
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score every layer; the arguments are those of sentence-transformers' evaluators."""
        with _unchanged(model) as dim:
            evaluations = self._evaluations(model, self.truncate_dim or dim)
            metrics = self._metrics(evaluations)
        self.items = self._by_item(evaluations)
        if output_path is not None and self.write_csv:
            _append(Path(output_path, self.csv_file), {name: [x] for name, x in metrics.items()}, epoch, steps)
        if output_path is not None and self.write_items:
            _append(Path(output_path, self.items_file), self.items, epoch, steps)
        metrics = {name: x for name, x in metrics.items() if not (math.isnan(x) and re.search("change(_|$)", name))}
        which = self.primary if isinstance(self.primary, str) else f"layer_{self.primary}"
        self.primary_metric = f"{which}_{self._title(self.task.primary)}"
        named: dict[str, float] = self.prefix_name_to_metrics(metrics, self.name)
        self.store_metrics_in_model_card_data(model, named, epoch, steps)
        return named

    def _evaluations(self, model: Any, dim: int | None) -> list[Evaluation]:
        """Return the scores of the layers, NaN for those that cannot be scored."""
        prompts = loaded_recipe(model).retrieval_prompts or ("", "")
        splits = dict.fromkeys((self.split, self.kind.fitted_on or self.split))
        items = {split: self.task.split(split).with_prompts(*prompts) for split in splits}
        row = {text: i for i, text in enumerate(dict.fromkeys(text for part in items.values() for text in part.texts))}
        # queries and documents have their own prompts, other texts get the model's
        layers = self._embedded(model, list(row), prompt=None if items[self.split].prompts is None else "")
        unknown = np.full(len(items[self.split]), math.nan)
        failed = Evaluation(metrics=dict.fromkeys(self.kind.metrics, math.nan), outputs=unknown, influences=unknown)
        evaluations = [failed] * len(layers)
        for layer, values in enumerate(layers):
            try:
                with settings(by_item=True, outputs=True):
                    evaluations[layer] = self._scored(values[:, :dim], row, items)
            except DataError as error:
                if layer not in self._warned:
                    logger.warning("layer %d cannot be scored and is NaN: %s", layer, error)
                self._warned.add(layer)
        return evaluations

    def _title(self, metric: str) -> str:
        return f"{metric.replace(' ', '_')}_{'probe' if self.kind.zero_shot == 'probe' else 'cosine'}"

    def _scored(self, values: Layer, row: dict[str, int], items: dict[TextSplit, Items]) -> Evaluation:
        # apart from rounding
        if np.ptp(finite_matrix(values, name="it"), axis=0).max() <= 1e-6 * np.abs(values).max():
            raise DegenerateLayerError("its embedding is the same for all texts")
        outputs = partial(outputs_of_layer, values, lambda texts: np.array([row[text] for text in texts]), self.task)
        name, threshold, gold = self.kind.name, None, items[self.split]
        if self.kind.threshold is not None and self.split != "validation":
            threshold = evaluate_outputs(name, outputs(items["validation"]), items["validation"].gold).threshold
        return evaluate_outputs(name, outputs(gold), gold.gold, threshold=threshold, primary=self.task.primary)

    def _metrics(self, evaluations: list[Evaluation]) -> dict[str, float]:
        """Return the metrics, with changes of the `primary` score since the evaluation before, NaN where unknown."""
        title, scores = self._title(self.task.primary), [one.metrics[self.task.primary] for one in evaluations]
        scored = [layer for layer, score in enumerate(scores) if not math.isnan(score)] or [0]
        best = max(scored, key=scores.__getitem__)
        layers: Any = {"best": [best], "mean": scored}
        metrics = {"best_layer": best if math.isfinite(scores[best]) else math.nan}
        metrics |= self._ends(f"best_{title}", *self._score([evaluations[best]], ""), "", difference=False)
        metrics[f"mean_{title}"] = float(np.mean([scores[layer] for layer in scored])) / 100
        for layer, evaluation in enumerate(evaluations):
            metrics |= {f"layer_{layer}_{self._title(name)}": x / 100 for name, x in evaluation.metrics.items()}
        chosen = [evaluations[layer] for layer in layers.get(self.primary, [self.primary])]
        before, self._before = self._before, {}
        for name in self._parts:
            value, psi = self._before[name, *scored] = self._score(chosen, name)
            earlier, of_earlier = before.get((name, *scored), (math.nan, psi))
            metrics |= self._ends(name + title, value, psi, name, difference=False) if name else {}
            metrics |= self._ends(f"{name}change", value - earlier, psi - of_earlier, name, difference=True)
        return metrics

    def _score(self, layers: list[Evaluation], part: str) -> tuple[float, Array]:
        """Return the mean score of layers x 100 on a part of the items, and the influences; NaN where undefined."""
        rows, primary, scored = self._parts[part][0], self.task.primary, cast(list[Any], layers)
        if part:
            score, gold = partial(evaluate_outputs, self.kind.name), self.task.split(self.split).take(rows).gold
            try:
                with settings(by_item=True):
                    scored = [score(x.outputs[rows], gold, threshold=x.threshold, primary=primary) for x in scored]
            except DataError:
                return math.nan, np.full(len(rows), math.nan)
        psi: Array = np.mean([evaluation.influences for evaluation in scored], axis=0)
        return float(np.mean([evaluation.metrics[primary] for evaluation in scored])), psi

    def _ends(self, name: str, value: float, psi: Array, part: str, *, difference: bool) -> dict[str, float]:
        """Return a score x 100, or a difference, as 0 .. 1 by its name, with the ends of its interval over items."""
        ends, links = (math.nan, math.nan), self._parts[part][1]
        if math.isfinite(value) and errors_known(len(psi), links):
            rests_on_few = (psi @ psi) ** 2 <= FEW_ITEMS * np.sum(psi**4)
            metric = self.task.primary if rests_on_few or not difference else None
            how: Any = {"links": links, "level": current().level, "metric": metric, "difference": difference}
            ends = cast(Any, crossed([value], psi[None], **how)).interval
            ends = bounded(self.task.primary, ends, difference=difference)
        return {f"{name}{end}": x / 100 for end, x in zip(("", "_low", "_high"), (value, *ends), strict=True)}

    def _by_item(self, evaluations: list[Evaluation]) -> dict[str, Any]:
        """Return the columns of `items`."""
        columns: dict[str, Any] = {"item": self.task.split(self.split).names}
        groups = {name[6:-1]: set(rows) for name, (rows, _) in self._parts.items() if name}
        of_item = [";".join(group for group in groups if i in groups[group]) for i in range(len(columns["item"]))]
        columns |= {"groups": of_item} if groups else {}
        for layer, evaluation in enumerate(evaluations):
            values = evaluation.metrics[self.task.primary] + cast(Array, evaluation.influences)
            columns[f"layer_{layer}_{self._title(self.task.primary)}"] = np.round(values / 100, 6).tolist()
            if self.kind.zero_shot == "cosine":
                columns[f"layer_{layer}_cosine"] = np.round(cast(Array, evaluation.outputs), 6).tolist()
        return columns

    def _embedded(self, model: Any, texts: list[str], *, prompt: str | None) -> list[Layer]:
        """Return the (text, width) embeddings of texts by every layer, from one pass.

        During the pass a text's embedding holds all layers, concatenated, so that all are computed in the precision
        that a trainer has set for its forward pass.
        """
        (inner, _), modules = model_and_tokenizer(model), list(model)
        if not isinstance(self.primary, str):
            self.primary = one_layer(self.primary, count_blocks(inner.config))
        key = inner.config.to_json_string(), [type(module) for module in modules]
        if self._known is None or self._known[0] != key:
            self._known = key, _checked_encoder(model).stack
            _later_modules(model, heads=self.heads, what="all layers but the last are scored")
        stack, following = self._known[1], _later_modules(model, heads=self.heads)
        read: dict[str, Any] = {}
        widths: list[int] = []

        def every_layer(module: Any, args: Any, output: dict[str, Any]) -> dict[str, Any]:
            embeddings, width = [], read["token_embeddings"].shape[1]
            for state in inputs:
                features = {**read, "token_embeddings": stack.through_tail(inner, state, width)}
                for later in following:
                    features = later.forward(features)  # a call would run this hook again
                embeddings.append(features["sentence_embedding"])
            inputs.clear()
            embeddings.append(output["sentence_embedding"])
            widths[:] = [embedding.shape[1] for embedding in embeddings]
            return {**output, "sentence_embedding": torch.cat(embeddings, dim=1)}

        with contextlib.ExitStack() as hooks:
            inputs = hooks.enter_context(stack.inputs_of_blocks(inner))
            # the inputs of later modules, before they add to them
            hooks.enter_context(modules[0].register_forward_hook(lambda module, args, output: read.update(output)))
            hooks.enter_context(modules[-1].register_forward_hook(every_layer))
            # with a device, no other process of distributed training embeds a part
            how = {"prompt": prompt, "batch_size": self.batch_size, "device": str(model.device)}
            both = np.asarray(model.encode(texts, show_progress_bar=False, **how), dtype=np.float32)
        return np.split(both, np.cumsum(widths)[:-1], axis=1)


@plain_torch()
def truncate(model: SentenceTransformer, layer: OneLayer, *, heads: Heads = "last") -> SentenceTransformer:
    """Return a copy of a model cut at a layer, 0 .. n_blocks or a result that chooses one: its export in memory.

    It has its own weights, on the same device and in the same precision, ready to be trained except for those that
    are frozen in the model, which stays unchanged. For `heads` see `LayerEvaluator`; a warning lists what is left out.

    Raises:
        LayerProbeError: If sentence-transformers is not installed, the model has no such layer, its layers differ from
            its truncations, or an export could not keep its modules.
    """
    _check_installed("truncate")
    check_choice(heads, Heads, name="heads")
    with _unchanged(model) as dim:
        inner, whole = model_and_tokenizer(model)[0], cast(Any, model[0]).auto_model
        number = one_layer(layer, count_blocks(inner.config))
        encoder = _checked_encoder(model)
        cut = TruncatedEncoder(encoder, number)
        cut.check_runs_alone()
        shorter = with_pooler(cut.model)
        if encoder.model is inner:  # with adapters: a merged copy with weights frozen by peft
            trained = {name: weight.requires_grad for name, weight in inner.named_parameters()}
            for name, weight in shorter.named_parameters():
                weight.requires_grad_(trained.get(name, True))
        last = number == encoder.description.n_blocks
        behind = _later_modules(model, heads=heads, last=last, what=f"layer {number} is cut")
        # copy the first module, with the shorter model in it
        modules = [copy.deepcopy(model[0], {id(whole): shorter}), *copy.deepcopy(behind)]
    options: Any = {name: getattr(model, name) for name in ("default_prompt_name", "similarity_fn_name")}
    options |= {"prompts": dict(cast(Any, model.prompts)), "device": str(model.device), "truncate_dim": dim}
    return SentenceTransformer(modules=modules, **options).eval()


# ---- what an evaluator is given, and writes ------------------------------------------------------------------


def _parts(items: Items, groups: Groups, what: str) -> dict[str, tuple[list[int], Links | None]]:
    """Return rows and links of all items, and of each group; DataError unless it has rows, or each item a group."""
    n = len(items)
    if not isinstance(groups, Mapping):
        names, by_name = np.fromiter(groups if np.iterable(groups) else [groups], object), dict[object, list[int]]()
        if len(names) not in (0, n):
            raise DataError(f"expected a group for each of the {n:,} {what}, got {len(names):,}")
        check_present(names, name="a group")
        for row, name in enumerate(names):
            by_name.setdefault(name, []).append(row)
        groups = by_name
    parts = {"": [*range(n)]}
    for group, rows in groups.items():
        parts[f"group_{group}_"] = numbers = sorted(np.ravel(rows).tolist())
        if np.asarray(rows).dtype.kind not in "iu" or len({*numbers} & {*parts[""]}) < len(numbers):
            raise DataError(f"expected distinct rows from 0 to {n - 1:,} in group {group!r}, got {rows!r:.60}")
    return {name: (rows, links_of(items.take(rows))) for name, rows in parts.items()}


def _append(path: Path, columns: Mapping[str, Sequence[object]], epoch: float, steps: int) -> None:
    """Add the first rows of columns to a CSV file, unless it has others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8", newline="") as file:
        file.seek(0)
        before, header = next(csv.reader(file), []), ["epoch", "steps", *columns]
        if before not in ([], header):
            logger.warning("%s has other columns, perhaps from another model: no row was added", file.name)
            return
        rows = itertools.islice(zip(*columns.values(), strict=True), MOST_ITEMS)
        new = [*([] if before else [header]), *((epoch, steps, *row) for row in rows)]
        csv.writer(file, lineterminator="\n").writerows(new)


# ---- a model of sentence-transformers --------------------------------------------------------------------


def _check_installed(what: str) -> None:
    check_extra("trainer", needed_by=what)
    if BaseEvaluator is object:
        raise MissingPackageError(f"{what} needs sentence-transformers 6: pip install --upgrade 'layerprobe[trainer]'")


def _checked_encoder(model: Any) -> Encoder:
    """Return the encoder of a model, its layers compared with truncated models that share its weights."""
    inner, tokenizer = model_and_tokenizer(model)
    if any(hasattr(module, "get_base_layer") for module in inner.modules()):
        inner = copy.deepcopy(inner)
        merge_adapters(inner)
    checkpoint = resolve((inner, tokenizer))
    check_modules([f"{type(module).__module__}.{type(module).__qualname__}" for module in model], name=checkpoint.label)
    encoder = load_encoder(checkpoint, device=str(inner.device), share=True)
    if encoder.stack.blocks is None and encoder.description.n_blocks:
        raise refusal(checkpoint.label, "its blocks do not run as modules of one list, so layerprobe cannot hook them")
    if reason := look(encoder):
        raise refusal(checkpoint.label, reason, advice=READABLE)
    return encoder


def _later_modules(model: Any, *, heads: Heads, last: bool = False, what: str = "") -> list[Any]:
    """Return the modules that follow a layer; warn about those left out if `what` is given."""
    any_layer = (*FOR_ANY_LAYER, *(("Dense", "LayerNorm") if heads == "every" else ()))
    kinds = {module: type(module).__name__ for module in list(model)[1:]}
    left = [kind for kind in kinds.values() if not last and kind not in any_layer]
    if left and what:
        logger.warning("%s without its %s, which was trained on the last layer", what, " and ".join(left))
    return [module for module, kind in kinds.items() if last or kind in any_layer]


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[int | None]:
    """Restore module modes and random states at the end; yield the model's `truncate_dim`, None inside the block."""
    sentence_model = is_loaded(model) and not isinstance(model, tuple) and hasattr(model, "truncate_dim")
    if not sentence_model:
        raise ModelError(
            "expected a SentenceTransformer whose first module is a model of transformers, with any adapters added by "
            f"model.add_adapter, got a {type(model).__name__}"
        )
    modes, dim = [(module, module.training) for module in model.modules()], model.truncate_dim
    with seeded(None, model.device):
        model.truncate_dim = None
        try:
            yield dim
        finally:
            model.truncate_dim = dim
            for module, mode in modes:
                module.training = mode
