"""A step of fine-tuning: adapters, gradients summed over groups of texts within a memory limit, the optimiser.

Knows modules, examples and their gradients; knows no files and no scores.

With adapters, a linear module of a block with weights W gives W x + (alpha / rank) B A x, where A, (rank, in), and B,
(out, rank), are trained and W is not. B starts at 0, so that the model starts unchanged.
Source: Hu et al. 2021, LoRA (arXiv 2106.09685).
"""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.checks import check_extra
from layerprobe.context import report
from layerprobe.encoders.batching import Batch, ModelInputs, collate, padded_groups, token_batches
from layerprobe.encoders.device import float64_device
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.failures import is_out_of_memory, model_errors
from layerprobe.encoders.model import Pooling
from layerprobe.errors import ModelError, TrainingError
from layerprobe.finetuning.losses import Criterion, PreparedItems, pooled
from layerprobe.finetuning.values import Protocol
from layerprobe.names import some
from layerprobe.rng import restore_rng, rng_states
from layerprobe.training import adamw, rate

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Largest number of tokens of a forward pass: a CPU is fastest if a group fits its cache.
CPU_BATCH_TOKENS, EVALUATION_BATCH_TOKENS = 1024, 4096
# Cost of one more group of examples on a CPU, in tokens: its calls, and one more addition to every gradient.
CPU_GROUP_OVERHEAD = 48
# More than any padding, so that all examples of a step are in one group.
WHOLE_BATCH = 2**40
# Steps between two checks of the loss on an accelerator, which has to wait for it.
LOOK_EVERY = 100

Readout = Callable[[Tensor, Batch, Pooling], Tensor]
"""Function from the token states of a layer to values of each text, such as `Criterion.read`."""

LayerWeights = Callable[[int], NDArray[np.float64]]
"""Function from a step (from 0) to the (layers,) weights of the losses; a weight of 0 leaves a layer out."""


class FineTuner:
    """The optimiser, its schedule, and one plain epoch.

    The loss of a step is the sum of the layers' losses, each with its criterion, times their weights.
    """

    def __init__(
        self,
        encoder: Encoder,
        model: TruncatedEncoder,
        protocol: Protocol,
        *,
        steps_per_epoch: int,
        criteria: Sequence[Criterion],
        weights: LayerWeights | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.encoder, self.model, self.protocol = encoder, model, protocol
        self.criteria = criteria
        self.weights = weights or (lambda step: np.ones(len(model.layers)))
        self.failures: dict[int, TrainingError] = {}
        """Reasons why layers are left out from now on, by layer."""
        on_cpu = encoder.device.type == "cpu"
        self.limit = TokenLimit(batch_tokens or (CPU_BATCH_TOKENS if on_cpu else None))
        self.cached = batch_tokens is not None
        """Whether a loss on the whole batch keeps one group in memory at a time."""
        # an accelerator is fastest with few large kernels; without padding there is nothing to save
        self.group_overhead = CPU_GROUP_OVERHEAD if on_cpu and encoder.padding_invariant else WHOLE_BATCH
        self.looks_every = 1 if on_cpu else LOOK_EVERY
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * protocol.epochs
        self.step = 0
        self._losses: list[Tensor] = []
        self.tables = TableGradients(model) if on_cpu else None
        self.drops = protocol.dropout and any(
            isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()
        )
        self.trained = [p for part in (model, *criteria) for p in part.parameters() if p.requires_grad]
        self.optimizer = adamw(self.trained, protocol, fused=True)
        self.share = functools.partial(rate, total_steps=self.total_steps, warmup=protocol.warmup)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)

    def epoch(self, examples: PreparedItems, order: NDArray[np.int64], *, task: str) -> list[float]:
        """Train once on every example in this order; return the mean loss of every layer."""
        self.model.train(self.protocol.dropout)
        place = float64_device(self.encoder.device)
        total = torch.zeros(len(self.criteria), dtype=torch.float64, device=place)
        for start in range(0, len(order), self.protocol.batch_size):
            rows = order[start : start + self.protocol.batch_size]
            losses = self.update(examples, rows)
            total += losses.to(place).double() * len(rows)
            self._losses.append(losses)
            if len(self._losses) >= self.looks_every or start + len(rows) == len(order):
                self._look_at_losses()
            report(task, self.step, self.total_steps)
        return (total / len(order)).tolist()

    def go_on_from(self, step: int) -> None:
        """Set the schedule to the given step."""
        self.step = step
        self.schedule.load_state_dict({**self.schedule.state_dict(), "last_epoch": step, "_step_count": step + 1})
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.share(step)

    def _look_at_losses(self) -> None:
        """Check for losses that are not finite; an accelerator waits here, not at every step."""
        first = self.step - len(self._losses) + 1
        steps = torch.stack(self._losses).tolist()
        self._losses.clear()
        for step, losses in enumerate(steps, start=first):
            for layer, loss in zip(self.model.layers, losses, strict=True):
                if not math.isfinite(loss):
                    self._fail(layer, loss, step)

    def _fail(self, layer: int, loss: float, step: int) -> None:
        """Leave a layer out from now on; raise TrainingError if it was the last one."""
        if layer in self.failures:
            return
        epoch = math.ceil(step / self.steps_per_epoch)
        self.failures[layer] = TrainingError(
            f"the loss at layer {layer} became {loss} at step {step} of {self.total_steps}, in "
            f"epoch {epoch}: lower the learning rate "
            f"(now {self.protocol.learning_rate:g}) or use float32"
        )
        if len(self.failures) == len(self.criteria):
            raise self.failures[min(self.failures)]

    def update(self, examples: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Take one step on the examples `rows`; return the mean loss of every layer."""
        states = rng_states(self.encoder.device)
        weights = self.weights(self.step)

        def work() -> Tensor:
            restore_rng(states, self.encoder.device)
            return self._gradients(examples, rows, weights)

        but = "; dropout is drawn differently than with more memory"
        losses = self.limit.run(work, f"at step {self.step + 1} of {self.total_steps}", but=but if self.drops else "")
        nn.utils.clip_grad_norm_(self.trained, self.protocol.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return losses

    def _gradients(self, examples: PreparedItems, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> Tensor:
        """Compute the gradients of the mean loss of the examples `rows`, summed over groups.

        Returns:
            (layers,) unweighted losses.
        """
        if self.tables:
            self.tables.clear()
        self.optimizer.zero_grad()
        whole_batch = self.criteria[0].whole_batch
        losses = (self._whole_batch_gradients if whole_batch else self._grouped_gradients)(examples, rows, weights)
        if self.tables:
            self.tables.expand()
        return losses

    def _grouped_gradients(
        self, examples: PreparedItems, rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Tensor:
        """Add up the gradients of groups of examples."""
        total = torch.zeros(len(self.criteria), device=self.encoder.device)
        tokens = examples.tokens[rows].tolist()
        groups = padded_groups(tokens, budget=self.limit.tokens, overhead=self.group_overhead)
        for group in self.limit.watched(groups, tokens):
            share = len(group) / len(rows)
            losses = [loss * share for loss in self._layer_losses(examples, rows[group])]
            self._weighted(losses, weights).backward()  # type: ignore[no-untyped-call]
            total += torch.stack(losses).detach()
        return total

    def _whole_batch_gradients(
        self, examples: PreparedItems, rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Tensor:
        """Compute the gradients of a loss that is not a mean over groups: groups of the step's texts are joined.

        When memory runs out, or if the tokens of a pass are given, one group is in memory at a time.
        """
        texts, places = np.unique(np.concatenate([side[rows] for side in examples.sides]), return_inverse=True)
        lengths = [examples.texts.length(text) for text in texts]
        groups = padded_groups(lengths, budget=self.limit.tokens, overhead=self.group_overhead)
        order = np.argsort(np.concatenate(groups))
        at = torch.from_numpy(order[places]).to(self.encoder.device)
        readouts = [criterion.read for criterion in self.criteria]

        def read(group: Sequence[int]) -> list[Tensor]:
            pooling = self.protocol.pooling
            return read_layers(self.encoder, self.model, examples.texts, texts[group].tolist(), readouts, pooling)

        def loss(layers: list[Tensor]) -> tuple[Tensor, Tensor]:
            losses = [
                criterion.example_loss(layer.index_select(0, at), examples, rows)
                for criterion, layer in zip(self.criteria, layers, strict=True)
            ]
            return self._weighted(losses, weights), torch.stack(losses).detach()

        watched = functools.partial(self.limit.watched, groups, lengths)
        if self.cached and len(groups) > 1:
            return cached_gradients(watched, read, loss, device=self.encoder.device)
        states = rng_states(self.encoder.device)
        try:
            return plain_gradients(watched, read, loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or len(groups) == 1:
                raise
        # outside the handler the graphs of the groups are free
        logger.warning(
            "out of memory at step %d of %d: continuing with every text embedded twice, and the graph of one group of "
            "texts in memory at a time, which gives the same gradients",
            self.step + 1,
            self.total_steps,
        )
        self.cached = True
        restore_rng(states, self.encoder.device)
        return self._gradients(examples, rows, weights)

    def _weighted(self, losses: list[Tensor], weights: NDArray[np.float64]) -> Tensor:
        """Return the weighted sum of the layers' losses for the gradient.

        With several layers, a loss that is not finite is left out: even times 0 it would spoil shared weights.
        """
        if len(losses) == 1:
            return losses[0]
        for layer, loss in zip(self.model.layers, torch.stack(losses).tolist(), strict=True):
            if not math.isfinite(loss):
                self._fail(layer, loss, self.step + 1)
        left = [i for i, layer in enumerate(self.model.layers) if layer not in self.failures]
        used = [i for i in left if weights[i]] or left
        return torch.stack([losses[i] * float(weights[i]) for i in used]).sum()

    def _layer_losses(self, items: PreparedItems, rows: NDArray[np.int64]) -> list[Tensor]:
        """Return the mean losses of the examples `rows` by layer. All texts of an example share one pass."""
        texts = np.concatenate([side[rows] for side in items.sides]).tolist()
        readouts = [criterion.read for criterion in self.criteria]
        layers = read_layers(self.encoder, self.model, items.texts, texts, readouts, self.protocol.pooling)
        return [
            criterion.example_loss(states, items, rows) for criterion, states in zip(self.criteria, layers, strict=True)
        ]


def embed(
    encoder: Encoder,
    model: TruncatedEncoder,
    texts: ModelInputs,
    rows: Sequence[int],
    protocol: Protocol,
) -> list[Tensor]:
    """Return the pooled embeddings of the texts `rows`, (text, feature), by layer."""
    return read_layers(encoder, model, texts, rows, [pooled] * len(model.layers), protocol.pooling)


def read_layers(
    encoder: Encoder,
    model: TruncatedEncoder,
    texts: ModelInputs,
    rows: Sequence[int],
    readouts: Sequence[Readout],
    pooling: Pooling,
) -> list[Tensor]:
    """Return the (text, ...) values of the texts `rows` from the readout of each layer; see `Criterion.read`.

    Values per token begin with the text's own tokens, on whichever side it is padded.

    The texts take one forward pass, or one per length if padding would change the output.
    """
    lengths = [texts.length(row) for row in rows]
    if not encoder.padding_invariant and len(set(lengths)) > 1:
        batches = list(token_batches(lengths, budget=sum(lengths), same_length=True))
        parts = [read_layers(encoder, model, texts, [rows[i] for i in batch], readouts, pooling) for batch in batches]
        places = torch.tensor([i for batch in batches for i in batch]).argsort().to(encoder.device)
        return [_as_wide(layer)[places] for layer in zip(*parts, strict=True)]
    batch = collate(texts, rows, encoder.device)
    with encoder.precision():
        states = list(model.layer_states(batch))
    pooled = [readout(state, batch, pooling) for readout, state in zip(readouts, states, strict=True)]
    if texts.padding_side == "left" and pooled[0].ndim > 2:
        width = max(lengths)
        return [
            torch.stack([text.roll(n - width, 0) for text, n in zip(layer, lengths, strict=True)]) for layer in pooled
        ]
    return pooled


def _as_wide(parts: Sequence[Tensor]) -> Tensor:
    """Join parts of (text, ...), or of (text, token, ...) with fewer tokens than others, which get zeros."""
    width = max(part.shape[1] for part in parts)
    wide = [part.new_zeros(len(part), width, *part.shape[2:]) for part in parts]
    for into, part in zip(wide, parts, strict=True):
        into[:, : part.shape[1]] = part
    return torch.cat(wide)


class TokenLimit:
    """The largest number of tokens of a forward pass, padding included; halved when memory runs out.

    A single text, or pair of texts, with more tokens goes through nevertheless.
    """

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        """The limit; None while there is none."""
        self._tried = (0, 0)

    def watched(self, batches: Iterable[list[int]], lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield `batches` of rows with token counts `lengths`, and remember the size of the last one."""
        for batch in batches:
            self._tried = (len(batch), len(batch) * max(lengths[row] for row in batch))
            yield batch

    def run(self, work: Callable[[], T], doing: str, *, but: str = "") -> T:
        """Run `work`, and repeat it with half the tokens whenever memory runs out.

        `work` takes its batches from `watched`, within `tokens`. The warning says what was done (`doing`), and the
        effect of smaller passes (`but`).
        """
        while True:
            self._tried = (0, 0)
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                rows, tokens = self._tried
                if not is_out_of_memory(error) or rows <= 1:
                    raise
            # outside the handler the tensors of the failed batch are free
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.tokens = tokens // 2
            logger.warning(
                "out of memory %s with %d tokens in one pass: continuing with passes of at most %d on the same texts%s",
                doing,
                tokens,
                self.tokens,
                but,
            )


class TableGradients:
    """Sums of the sparse gradients of a model's embedding tables, made dense for the optimiser.

    A dense gradient is as large as the vocabulary, and a new one is made, filled and added in every backward
    pass: on a CPU that takes longer than the arithmetic of a small block. The sums are the same.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [module for module in model.modules() if type(module) is nn.Embedding and module.weight.requires_grad]
        for module in modules:
            module.sparse = True
        self._tables = list({id(module.weight): module.weight for module in modules}.values())
        self._dense = [torch.zeros_like(table) for table in self._tables]
        self._rows: list[Tensor | None] = [None] * len(self._tables)

    def clear(self) -> None:
        """Forget the gradients."""
        for i, (table, dense) in enumerate(zip(self._tables, self._dense, strict=True)):
            rows, self._rows[i] = self._rows[i], None
            if rows is not None:
                dense[rows] = 0
            table.grad = None

    def expand(self) -> None:
        """Make the summed sparse gradients dense; call it once, after the last backward pass."""
        for i, (table, dense) in enumerate(zip(self._tables, self._dense, strict=True)):
            # a table that is also used as a matrix has a dense gradient from the start
            if table.grad is not None and table.grad.is_sparse:
                summed = table.grad.coalesce()
                self._rows[i] = summed.indices()[0]
                dense[self._rows[i]] = summed.values()
                table.grad = dense


Groups = Callable[[], Iterable[list[int]]]
"""Function that returns the texts of a step in groups."""
Read = Callable[[Sequence[int]], list[Tensor]]
"""Function from the texts of a group to their (text, width) embeddings by layer."""
StepLoss = Callable[[list[Tensor]], tuple[Tensor, Tensor]]
"""Function from (text, width) of all groups by layer to the objective and a second value."""


def plain_gradients(groups: Groups, read: Read, loss: StepLoss) -> Tensor:
    """Compute gradients in one backward pass through all groups; memory grows with the step.

    Returns:
        The second value of the loss.
    """
    objective, losses = loss(_joined([read(group) for group in groups()]))
    objective.backward()  # type: ignore[no-untyped-call]
    return losses


def cached_gradients(groups: Groups, read: Read, loss: StepLoss, *, device: torch.device) -> Tensor:
    """Compute the same gradients with one group in memory at a time, at the cost of a second forward pass.

    All groups are embedded without a graph; the loss gives gradients at the embeddings; each group is embedded again,
    with the same dropout, to propagate these gradients from its embeddings to the weights.

    Source: Gao et al. 2021 (arXiv 2101.06983), GradCache.

    Returns:
        As `plain_gradients`.
    """
    states, parts = [], []
    for group in groups():
        states.append(rng_states(device))
        with torch.no_grad():
            parts.append(read(group))
    leaves = [layer.requires_grad_() for layer in _joined(parts)]
    objective, losses = loss(leaves)
    objective.backward()  # type: ignore[no-untyped-call]
    begin = 0
    for group, state in zip(groups(), states, strict=True):
        restore_rng(state, device)
        end = begin + len(group)
        # a layer whose loss does not count has no gradient
        both = [
            (again, leaf.grad[begin:end])
            for again, leaf in zip(read(group), leaves, strict=True)
            if leaf.grad is not None
        ]
        torch.autograd.backward([again for again, _ in both], [gradient for _, gradient in both])
        begin = end
    return losses


def _joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


LINEAR = ("Linear", "Conv1D")
"""Classes of modules that multiply by a matrix; GPT-2 uses the latter."""


def prepare_model(model: TruncatedEncoder, protocol: Protocol) -> None:
    """Add adapters and gradient checkpointing to a model, if the protocol asks for them.

    Adapters go into the linear modules of the blocks, or into those whose names end in one of `lora_modules`; in a
    model without a block, into its embedding tables. All other weights are frozen.
    """
    if protocol.gradient_checkpointing:
        _checkpoint(model)
    if protocol.lora:
        _add_adapters(model, protocol)


def merge_adapters(model: nn.Module) -> None:
    """Merge adapters into the weights beside them; do nothing if there are none."""
    for path, module in list(model.named_modules()):
        if hasattr(module, "merge") and hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.get_base_layer())


def _add_adapters(model: TruncatedEncoder, protocol: Protocol) -> None:
    check_extra("lora", needed_by="training adapters")
    from peft import LoraConfig, inject_adapter_in_model

    targets = _targets(model, protocol.lora_modules)
    rank, alpha = protocol.lora, protocol.lora_alpha or 2 * protocol.lora
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets)
    with model_errors(model.name, "adding adapters to it"):
        inject_adapter_in_model(config, model.model)
    trained, weights = (
        sum(p.numel() for p in model.model.parameters() if p.requires_grad or not only) for only in (True, False)
    )
    logger.info(
        "adapters of rank %d in %d modules: %s weights trained, %s frozen",
        rank,
        len(targets),
        f"{trained:,}",
        f"{weights - trained:,}",
    )


def _targets(model: TruncatedEncoder, targets: tuple[str, ...]) -> list[str]:
    """Return the full names of the modules that get adapters."""
    within = "" if model.stack.blocks is None else f"{model.stack.blocks}."
    linear = [
        path
        for path, module in model.model.named_modules()
        if path.startswith(within) and type(module).__name__ in LINEAR
    ]
    if model.layer == 0:
        linear = []  # a block kept in the stack is not run
    if not linear:
        return [path for path, module in model.model.named_modules() if type(module) is nn.Embedding]
    if targets:
        names = sorted({path.rpartition(".")[2] for path in linear})
        if missing := [name for name in targets if not any(_ends_as(path, name) for path in linear)]:
            raise ModelError(
                f"no linear module of {model.name} is named {', '.join(missing)}: choose from "
                f"{some(names, 12)}, or give the end of a path"
            )
        return [path for path in linear if any(_ends_as(path, name) for name in targets)]
    return linear


def _ends_as(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _checkpoint(model: TruncatedEncoder) -> None:
    inner: Any = model.model
    if not getattr(inner, "supports_gradient_checkpointing", False):
        raise ModelError(f"{model.name} does not support gradient checkpointing: turn it off")
    with model_errors(model.name, "turning on gradient checkpointing"):
        # its name in transformers 5.23, and in earlier versions
        enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
        enable({"use_reentrant": False})
