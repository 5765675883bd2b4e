"""A whole model as teacher: its embeddings as a task, agreement with it, and blocks and tokens that matter least.

Embeddings are those of the last layer, by torch or a graph, mapped to fewer features on request. Each removed block is
the one without which the embeddings of some texts agree most with the whole model's. Knows resolved models and texts.
"""

import base64
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn import functional as F

from layerprobe.context import report
from layerprobe.encoders.architecture import check_blocks, count_blocks, model_with_blocks
from layerprobe.encoders.batching import (
    Batch,
    ModelInputs,
    TokenizedTexts,
    collate,
    copies,
    pool,
    read_by_model,
    token_batches,
    tokenize,
)
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH, Encoder, TruncatedEncoder, float32_attention
from layerprobe.encoders.graphs import Graph
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Pooling
from layerprobe.encoders.vocabulary import tokenizer_rules
from layerprobe.errors import DataError, UnsupportedArchitectureError, another_folder
from layerprobe.extraction.embed import run_in_halves, token_cap
from layerprobe.files.atomic import folder_errors, new_folder
from layerprobe.files.images import prompted
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.metrics.scores import mean_influences
from layerprobe.names import short_name
from layerprobe.shrinking.values import CORPUS, Removal, Size, read_size
from layerprobe.similarity.checks import unit_rows
from layerprobe.store.store import Store
from layerprobe.tasks.kind import KINDS, Kind, Learning
from layerprobe.tasks.quality import distinct_texts
from layerprobe.tasks.values import Items, Task
from layerprobe.versions import REMOVALS_VERSION

N_TEXTS = 400
"""Most texts for measuring agreement."""

Vectors = NDArray[np.float32]
Embed = Callable[[ModelInputs], Vectors]
"""Function from tokenised texts to (text, feature) embeddings."""


@torch.inference_mode()
def embedded(
    encoder: Encoder, texts: ModelInputs, one: Callable[[Batch], Vectors], batch_tokens: int | None = None
) -> Vectors:
    """Embed tokenised texts batch by batch with `one`; returns (text, feature)."""
    embeddings = np.empty((len(texts.lengths), encoder.description.hidden_size), dtype=np.float32)
    budget, same_length = token_cap(encoder, batch_tokens), not encoder.padding_invariant
    for rows in token_batches(texts.lengths, budget=budget, same_length=same_length):
        batch = collate(texts, rows, encoder.device)
        embeddings[rows] = run_in_halves(lambda batch: torch.from_numpy(one(batch))[None], batch)[0].numpy()
    again, first = copies(texts)
    embeddings[again] = embeddings[first]
    return embeddings


def vectors(states: Tensor, batch: Batch, pooling: Pooling) -> Vectors:
    """Pool the (text, token, feature) states of a batch to (text, feature)."""
    return pool(states, batch["attention_mask"], pooling).float().cpu().numpy()


def embedder(model: SharedModel, *, graph: Graph | None = None, dense: Vectors | None = None) -> Embed:
    """Return a function that embeds tokenised texts by the last layer, in torch or a graph, then maps by `dense`."""

    def embed(texts: ModelInputs) -> Vectors:
        encoder, how = model.encoder, model.checkpoint
        last = TruncatedEncoder(encoder, encoder.n_layers - 1, share=True)

        def one(batch: Batch) -> Vectors:
            if graph is not None:
                return graph.run(batch)[-1]
            with encoder.precision():
                states = last(batch)
            return vectors(states, batch, how.pooling)

        return embedded(encoder, texts, one, how.asked.batch_tokens)

    return mapped(embed, dense)


def mapped(embed: Embed, dense: Vectors | None) -> Embed:
    """Return a function that embeds texts and maps the embeddings by `dense`, a (dimensions, width) map."""
    return embed if dense is None else lambda texts: embed(texts) @ dense.T


def once(embed: Embed) -> Embed:
    """Return a function that embeds the same tokenised texts once."""
    done = dict[bytes, Vectors]()

    def remembered(texts: ModelInputs) -> Vectors:
        read = cast(TokenizedTexts, texts)
        key = read.ids.tobytes() + read.ends.tobytes()
        if key not in done:
            done[key] = embed(texts)
        return done[key]

    return remembered


def tokenized(model: SharedModel, texts: Sequence[str]) -> ModelInputs:
    """Tokenise texts for the model, with its prompt."""
    how = model.checkpoint
    return model.encoder.tokenize(prompted(how.prompt, texts), max_length=how.max_length)


# ---- fewer dimensions -----------------------------------------------------------------------------------


def fewer(embeddings: NDArray[Any], dimensions: int) -> NDArray[np.float32]:
    """Return the (dimensions, width) map of (text, width) embeddings to fewer features; its rows are orthonormal.

    It adds nothing to embeddings: centring would change every cosine. It keeps the directions of the largest
    normalised embeddings, so that inner products change least (Eckart and Young 1936).
    """
    unit = unit_rows(np.asarray(embeddings, dtype=np.float64), name="an embedding")
    directions = np.linalg.eigh(unit.T @ unit)[1].T[::-1][:dimensions]
    return np.ascontiguousarray(directions, dtype=np.float32)


def write_dense(folder: Path, weight: NDArray[np.float32]) -> None:
    """Write a (dimensions, width) map as a Dense module, whole or not at all; StoreError if it cannot be written."""
    identity = "torch.nn.modules.linear.Identity"
    keys = {"in_features": weight.shape[1], "out_features": len(weight), "bias": False, "activation_function": identity}
    with folder_errors(folder, advice=another_folder()), new_folder(folder, replace=True) as new:
        (new / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
        save_file({"linear.weight": weight}, new / "model.safetensors")


class LikeTeacher(Criterion):
    """1 - cos(student, teacher), plus the squared difference of similarities between the texts of a step.

    The first term is the mean over texts, half the squared error of normalised embeddings; the second is the mean over
    all pairs of texts of a step, times `weight`. Only directions are learnt: the length of embeddings is free.
    """

    whole_batch: ClassVar[bool] = True
    weight: ClassVar[float] = 10.0
    """Weight of the similarities: their squared differences are about a tenth of the first term."""

    @classmethod
    def check_batch(cls, items: PreparedItems, batch_size: int) -> None:
        """Accept any batch size."""

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of texts with (text, width) embeddings."""
        student = F.normalize(states, dim=1)
        teacher = F.normalize(torch.from_numpy(items.targets[rows]).to(states.device, torch.float32), dim=1)
        similarities = (student @ student.T - teacher @ teacher.T).square().mean()
        return (1 - (student * teacher).sum(dim=1)).mean() + self.weight * similarities

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the (text, width) embeddings of all texts, for `agreement`."""
        return np.asarray(states, dtype=np.float64)[items.sides[0]]


Array = NDArray[np.float64]

NEAREST = 10
"""Number of neighbours per text whose agreement is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught(Items):
    """Texts, each with its target embedding."""

    by_item = ("listed",)
    listed: tuple[str, ...]
    """The texts."""
    width: int
    """Features of an embedding."""
    embeddings: str
    """Base64 of the (text, feature) float32 embeddings."""

    @classmethod
    def of(cls, texts: Sequence[str], embeddings: NDArray[np.float32]) -> "Taught":
        """Return texts with their (text, feature) embeddings."""
        written = base64.b64encode(np.ascontiguousarray(embeddings, dtype="<f4").tobytes()).decode()
        return cls(listed=tuple(texts), width=embeddings.shape[1], embeddings=written)

    def __repr__(self) -> str:
        return f"<Taught: {len(self):,} texts>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The texts."""
        return (self.listed,)

    @property
    def gold(self) -> Any:
        """(text, feature) float32."""
        return np.frombuffer(base64.b64decode(self.embeddings), dtype="<f4").reshape(-1, self.width)

    def take(self, rows: Sequence[int]) -> "Taught":
        """Return the texts of these numbers, in this order."""
        return Taught.of([self.listed[i] for i in rows], self.gold[list(rows)])

    def join(self, other: "Taught") -> "Taught":
        """Return these texts followed by the others."""
        return Taught.of(self.listed + other.listed, np.concatenate([self.gold, other.gold]))

    def prompted(self, prompt: str) -> "Taught":
        """Return the texts with a prompt before each."""
        return replace(self, listed=tuple(prompt + text for text in self.listed))

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless there is a finite embedding for every text."""
        if self.gold.shape != (len(self), self.width) or not np.isfinite(self.gold).all():
            raise DataError(f"expected a finite embedding for each of {len(self)} texts of the {split} split")


HELD_OUT = 500
"""Most texts for choosing the best checkpoint, and as many for measuring agreement."""


def n_held_out(n: int) -> int:
    """Return the number of texts, of n, for choosing the best checkpoint, and as many for measuring agreement."""
    return min(HELD_OUT, max(8, n // 10))


def split_texts(texts: Sequence[str], embeddings: NDArray[np.float32], name: str) -> Task:
    """Return texts with their embeddings as a task, split at random."""
    order, held_out = np.random.default_rng(0).permutation(len(texts)), n_held_out(len(texts))
    validation, test, train = (
        Taught.of([texts[i] for i in rows], embeddings[rows]) for rows in np.split(order, [held_out, 2 * held_out])
    )
    return Task(name=name, kind="teacher", train=train, validation=validation, test=test, keep_overlaps=True)


def agreement_by_text(outputs: NDArray[Any], gold: NDArray[Any]) -> Array:
    """Return per text Pearson's correlation of its similarities to all other texts in two models.

    Args:
        outputs: (n, width) embeddings of at least four texts.
        gold: (n, other width) embeddings of the same texts by the other model.

    Returns:
        (n,) from -1 to 1; 0 if all similarities of a text are equal.
    """
    if len(outputs) < 4:
        raise DataError(f"expected at least four texts to compare similarities of, got {len(outputs)}")
    n = len(outputs)
    others = ~np.eye(n, dtype=bool)
    ours, theirs = (_similarities(embeddings)[others].reshape(n, n - 1) for embeddings in (outputs, gold))
    ours, theirs = (similarities - similarities.mean(axis=1, keepdims=True) for similarities in (ours, theirs))
    scale = np.sqrt((ours**2).sum(axis=1) * (theirs**2).sum(axis=1))
    return np.divide((ours * theirs).sum(axis=1), scale, out=np.zeros(len(scale)), where=scale > 0)


def agreement(outputs: NDArray[Any], gold: NDArray[Any]) -> float:
    """Return the mean of `agreement_by_text`."""
    return float(agreement_by_text(outputs, gold).mean())


def shared_neighbours(outputs: NDArray[Any], gold: NDArray[Any]) -> Array:
    """Return per text the share, 0 to 1, of its `NEAREST` nearest neighbours that both models have in common."""
    k = min(NEAREST, len(outputs) - 1)
    ours, theirs = (_nearest(_similarities(embeddings), k) for embeddings in (outputs, gold))
    return np.array([len(np.intersect1d(a, b)) / k for a, b in zip(ours, theirs, strict=True)])


def _similarities(embeddings: NDArray[Any]) -> Array:
    units = unit_rows(np.asarray(embeddings, dtype=np.float64), name="an embedding")
    return units @ units.T


def _nearest(similarities: Array, k: int) -> NDArray[np.intp]:
    np.fill_diagonal(similarities, -np.inf)
    return np.argpartition(-similarities, k - 1, axis=1)[:, :k]


def _scores(outputs: Array, gold: NDArray[Any]) -> dict[str, float]:
    return {"agreement": agreement(outputs, gold), "neighbours": float(shared_neighbours(outputs, gold).mean())}


def _influences(outputs: Array, gold: NDArray[Any]) -> dict[str, Array]:
    by_text = agreement_by_text(outputs, gold), shared_neighbours(outputs, gold)
    return dict(zip(("agreement", "neighbours"), map(mean_influences, by_text), strict=True))


TEACHER = Kind(
    name="teacher",
    pairs=False,
    labelled=False,
    metrics=("agreement", "neighbours"),
    score=_scores,
    influences=_influences,
    learning=lambda: Learning(loss=LikeTeacher),
    zero_shot="own",
    items=Taught,
    one_target=True,
)
"""How a smaller model learns the whole one's embeddings; agreement selects checkpoints and is not a task score."""
# no file has this kind, so no message lists it
KINDS.add({TEACHER.name: f"{__name__}:TEACHER"}, listed=False)

# ---- blocks and tokens to remove -------------------------------------------------------------------------------------


def block_embeddings(whole: SharedModel, tokens: ModelInputs, blocks: Sequence[int]) -> Vectors:
    """Return the (text, width) embeddings of tokenised texts by the model of some blocks, from forward passes."""
    encoder, how = whole.encoder, whole.checkpoint
    model = encoder.model
    if len(blocks) < encoder.description.n_blocks:
        probe = collate(tokens, range(min(2, len(tokens.lengths))), encoder.device)
        with float32_attention(encoder.model) as attention:
            model = model_with_blocks(model, blocks, probe, name=encoder.description.name)
        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)

    def one(batch: Batch) -> Vectors:
        with encoder.precision():
            states = model(**read_by_model(batch)).last_hidden_state
        return vectors(states, batch, how.pooling)

    return embedded(encoder, tokens, one, how.asked.batch_tokens)


def kept_order(whole: SharedModel, texts: Sequence[str]) -> tuple[Removal, ...]:
    """Return the order in which blocks are removed, for some of the texts; from the store if it was computed before."""
    model, texts = whole.checkpoint, tuple(texts[:N_TEXTS])
    store = Store(model.asked.cache_dir)
    read = [model.pooling, model.prompt, model.max_length, model.dtype]
    key = digest([REMOVALS_VERSION, model.identity, *read, texts])
    removals = store.load_result("removals", key, cast(Any, tuple[Removal, ...]))
    if removals is None:
        removals = removal_order(whole, texts)
        store.save_result("removals", key, removals)
    return cast(tuple[Removal, ...], removals)


def removal_order(whole: SharedModel, texts: Sequence[str]) -> tuple[Removal, ...]:
    """Remove blocks one after another, each time the one without which agreement is highest, until one is left.

    With N blocks this takes N (N + 1) / 2 - 1 passes over the texts, by ever fewer blocks. A block that no model can
    miss, such as the first one of T5, stays.
    """
    tokens, n_blocks = tokenized(whole, texts), whole.encoder.description.n_blocks
    left = tuple(range(1, n_blocks + 1))
    of_whole = block_embeddings(whole, tokens, left)

    def agreed(blocks: Sequence[int]) -> float | None:
        """Return the agreement x 100 of the model of some blocks with the whole one; None if it cannot be made."""
        with contextlib.suppress(UnsupportedArchitectureError):
            return 100 * agreement(block_embeddings(whole, tokens, blocks), of_whole)
        return None

    done, total = 0, n_blocks * (n_blocks + 1) // 2 - 1
    removals: list[Removal] = []
    while len(left) > 1:
        agreements: dict[int, float] = {}
        for block in left:
            value = agreed(tuple(b for b in left if b != block))
            if value is not None:
                agreements[block] = value
            done += 1
            report(f"choosing blocks of {short_name(whole.encoder.description.name)}", done, total)
        if not agreements:
            break
        gone = max(agreements, key=agreements.__getitem__)
        left = tuple(block for block in left if block != gone)
        size = len(left)
        removals.append(
            Removal(
                block=gone,
                kept=left,
                agreement=agreements[gone],
                evenly=agreed(evenly_spaced(n_blocks, size)),
                first=agreed(range(1, size + 1)),
            )
        )
    if not removals:
        # logs the reason
        block_embeddings(whole, tokens, range(2, n_blocks + 1))
    return tuple(removals)


def evenly_spaced(n_blocks: int, size: int) -> tuple[int, ...]:
    """Return evenly spaced blocks, including the last one.

    Examples:
        >>> evenly_spaced(6, 3), evenly_spaced(12, 5)
        ((2, 4, 6), (2, 5, 7, 10, 12))
    """
    return tuple(round((i + 1) * n_blocks / size) for i in range(size))


def candidates(model: ModelLike, task: Task, size: Size) -> list[tuple[int, ...]]:
    """Return blocks of one size, the first blocks first, for comparison by `finetune`.

    The others are the blocks chosen by the agreement of untrained embeddings, as in `shrink`, evenly spaced blocks,
    and given ones.

    Args:
        model: A whole model.
        task: Task with the training texts to read.
        size: Number of blocks, or the blocks to compare with as many first ones.

    Raises:
        DataError: If there are no other blocks of this number.
        ModelError: If the model has no such blocks.
        UnsupportedArchitectureError: If its blocks cannot be removed.
    """
    checkpoint = resolve(model, items=task.readable)
    n_blocks, name, parsed = count_blocks(checkpoint.config), checkpoint.label, None
    with contextlib.suppress(DataError):  # its message offers shares and speeds, which are invalid here
        parsed = read_size(size)
    given_blocks = tuple(block for block in parsed if isinstance(block, int)) if isinstance(parsed, tuple) else None
    count = parsed if isinstance(parsed, int) else len(given_blocks or ())
    if checkpoint.asked.blocks is not None or not 1 <= count < n_blocks:
        raise DataError(
            f"expected 1 to {n_blocks - 1} blocks to compare, or the blocks themselves, got {size} of {name}"
        )
    if given_blocks is not None:
        check_blocks(checkpoint.config, given_blocks, name=name)
    order = kept_order(SharedModel(checkpoint), distinct_texts(task.texts("train")))
    agree = next((removal.kept for removal in order if len(removal.kept) == count), None)
    first, evenly = tuple(range(1, count + 1)), evenly_spaced(n_blocks, count)
    return list(dict.fromkeys(blocks for blocks in (first, agree, evenly, given_blocks) if blocks is not None))


def tokens_to_keep(
    model: Resolved, texts: Sequence[str], vocabulary: int | float | Literal["corpus"]
) -> tuple[tuple[int, ...], float]:
    """Return the ids of the tokens to keep, ascending, and the share of removed tokens in the texts, 0 to 1.

    Special tokens and single letters are always kept; then the texts' tokens, the most frequent first; then unused
    tokens with the lowest ids. For BPE, a token also keeps the tokens it is merged from.

    Raises:
        DataError: If fewer are requested than must be kept, or not fewer than all.
        ModelError: If the vocabulary cannot be reduced.
    """
    rules = tokenizer_rules(model.tokenizer, name=model.label)
    ids, path = sorted({*rules.ids.values()}), rules.paths()
    counts = np.bincount(_read(model, texts), minlength=ids[-1] + 1)
    chosen = rules.always(model.tokenizer, model.config)
    prompts = [prompt for prompt in {model.prompt, *model.recipe.prompts.values(), *model.retrieval_prompts} if prompt]
    chosen |= {part for token in {*_read(model, prompts).tolist()} for part in path(token)}
    seen = [i for i in sorted(ids, key=lambda i: (-counts[i], i)) if counts[i] or vocabulary != CORPUS]
    if vocabulary == CORPUS:
        most = len(ids)
    else:
        most = round(vocabulary * len(ids)) if isinstance(vocabulary, float) else vocabulary
        if len(chosen) == len(ids):
            raise DataError(
                f"no tokens of {model.label} can be removed: all of its {len(ids):,} are special ones or single letters"
            )
        if not len(chosen) <= most < len(ids):
            raise DataError(
                f"expected {len(chosen):,} to {len(ids) - 1:,} tokens of {model.label} to keep (special ones "
                f"and single letters: {len(chosen):,}), got {most:,}"
            )
    for token in seen:
        with_parts = chosen | path(token)
        if len(with_parts) <= most:
            chosen = with_parts
        if len(chosen) == most:
            break
    tokens = tuple(sorted(chosen))
    return tokens, 1 - float(counts[[*tokens]].sum() / counts.sum())


def _read(model: Resolved, texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the ids of all tokens in texts, concatenated."""
    length = model.max_length or DEFAULT_MAX_LENGTH
    return tokenize(model.tokenizer, prompted(model.prompt, texts), max_length=length, token_types=False).ids
