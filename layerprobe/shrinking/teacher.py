"""A whole model's embeddings of texts as a task, and functions that compute embeddings of smaller models.

Embeddings are those of the last layer, by torch or a graph, mapped to fewer features on request. Knows loaded encoders.
"""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.batching import Batch, ModelInputs, TokenizedTexts, collate, copies, pool, token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.graphs import Graph
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, another_folder
from layerprobe.extraction.embed import run_in_halves, token_cap
from layerprobe.files.atomic import folder_errors, new_folder
from layerprobe.files.images import prompted
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.metrics.scores import mean_influences
from layerprobe.similarity.checks import unit_rows
from layerprobe.tasks.kind import KINDS, Kind, Learning
from layerprobe.tasks.values import Items

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
    pooled: Vectors = pool(states, batch["attention_mask"], pooling).float().cpu().numpy()
    return pooled


def embedder(model: SharedModel, *, graph: Graph | None = None, dense: Vectors | None = None) -> Embed:
    """Return a function that embeds tokenised texts by the last layer, in torch or a graph, then maps by `dense`."""

    def embed(texts: ModelInputs) -> Vectors:
        encoder, how = model.encoder, model.checkpoint
        last = TruncatedEncoder(encoder, encoder.n_layers - 1, share=True)

        def one(batch: Batch) -> Vectors:
            if graph is not None:
                last_layer: Vectors = graph.run(batch)[-1]
                return last_layer
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
    by_text: Array = np.divide((ours * theirs).sum(axis=1), scale, out=np.zeros(len(scale)), where=scale > 0)
    return by_text


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
    similarities: Array = units @ units.T
    return similarities


def _nearest(similarities: Array, k: int) -> NDArray[np.intp]:
    np.fill_diagonal(similarities, -np.inf)
    nearest: NDArray[np.intp] = np.argpartition(-similarities, k - 1, axis=1)[:, :k]
    return nearest


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
