"""Whether a model still reads and embeds texts as it did: a small file now, and a comparison with it later.

Embeds anew, never from the store, which another version of a library may have filled.
"""

import contextlib
import hashlib
import itertools
import json
from dataclasses import dataclass, field
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.encoders.batching import TokenizedTexts
from layerprobe.encoders.device import processor
from layerprobe.encoders.identity import ModelLike, resolve
from layerprobe.encoders.loading import load
from layerprobe.encoders.model import DEFAULTS
from layerprobe.errors import DataError, one_line
from layerprobe.extraction.embed import embed_tokens, tokens_of
from layerprobe.extraction.embeddings import Extraction
from layerprobe.files.serialisation import RARE, to_dict
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.shown import load as load_result
from layerprobe.results.table import Column, Table, columns_of
from layerprobe.versions import __version__, versions

TEXTS = Path(__file__).with_name("texts.json")
"""Texts of many scripts; one that is longer than the model's limit is added."""
N_DIRECTIONS = 8
"""Projections of an embedding in a file."""
ERROR = (0.68, 1.92)
"""A distance is this many times its estimate (95 %): sqrt(8 / chi2), with 8 degrees of freedom."""
TOLERANCES = {"float32": 3e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest relative distance of a text's embedding that is called rounding: 19, 6 and 5 times what batches, kinds of
attention and instruction sets made with MiniLM."""
OPTIONS = ("pooling", "max_length", "prompt", "dtype", "norm", "random_init")
"""Options of a `Model` that a comparison takes from the file unless they are set."""
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Snapshot(Shown):
    """How a model reads and embeds 32 texts, and what has changed since an earlier one."""

    options: dict[str, str | int]
    """Requested options among `OPTIONS`."""
    sources: dict[str, str]
    """What the numbers may depend on: the model and how it is read, versions, the processor."""
    texts: tuple[str, ...]
    ids: tuple[str, ...]
    """Token ids of each text, separated by blanks."""
    tokens: tuple[str, ...]
    """The tokens with these ids; ␣ is a blank in one."""
    layers: tuple[int, int, int]
    """The first, the middle and the last layer."""
    embeddings: tuple[tuple[str, ...], ...]
    """(layer, text): the norm, and projections on fixed directions of +1 and -1."""
    before: "Snapshot | None" = field(default=None, metadata=RARE)
    """An earlier one of the same texts."""

    def __post_init__(self) -> None:
        sizes = [len(self.ids), len(self.tokens), self.numbers.shape[1]]
        if sizes != [len(self.texts)] * 3:
            raise DataError(f"expected tokens and embeddings of {len(self.texts)} texts, got {sizes}")

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Norms and projections of the embeddings, (layer, text, 9)."""
        return np.array([[row.split() for row in layer] for layer in self.embeddings], dtype=np.float64)

    @property
    def changed(self) -> list[int]:
        """Rows of the texts whose token ids have changed."""
        return [row for row, ids in enumerate((self.before or self).ids) if ids != self.ids[row]]

    @property
    def compared(self) -> list[int]:
        """Rows of the texts whose embeddings are compared: those with the same tokens; all if there are none."""
        return [row for row in range(len(self.texts)) if row not in self.changed] or self.changed

    @property
    def distances(self) -> NDArray[np.float64]:
        """Distances of embeddings from those before, as shares of the norms before, (layer, text): estimates.

        The mean square of projections on directions of +1 and -1 is unbiased for the squared length.
        """
        now, then = self.numbers, (self.before or self).numbers
        moved: NDArray[np.float64] = np.sqrt(np.mean((now - then)[..., 1:] ** 2, axis=-1))
        return moved / np.maximum(then[..., 0], TINY)

    @property
    def conclusion(self) -> Conclusion:
        """What has changed first: the tokens of some texts, or the embeddings of a layer."""
        facts = counts(read=len(self.texts))
        names: dict[str, object] = {"layers": self.layers, "pooling": self.sources["pooling"]}
        case = "saved"
        if self.before is not None:
            dtype = max((one.sources["dtype"] for one in (self, self.before)), key=TOLERANCES.__getitem__)
            rows: list[dict[str, Any]] = self.table.records()
            moved = [row for row in rows if row["largest"] > TOLERANCES[dtype]]
            row = moved[0] if moved else max(rows, key=itemgetter("largest"))
            ends = (row["distance"] * ERROR[0], row["distance"] * ERROR[1]) if row["distance"] else None
            case = "tokens" if self.changed else "moved" if moved else "same"
            facts |= counts(changed=len(self.changed), compared=len(self.compared))
            facts |= {
                "distance": Fact(value=row["distance"], unit="share", interval=ends, level=0.95),
                "largest": Fact(value=row["largest"], unit="share"),
                "cosine": Fact(value=row["cosine"], unit="similarity", least=1.0),
                "layer": Fact(value=row["layer"], unit="layer"),
                "tolerance": Fact(value=TOLERANCES[dtype], unit="share"),
            }
            names |= {"dtype": dtype, "moved": tuple(row["layer"] for row in moved)}
        return Conclusion(
            kind="snapshot",
            case=case,
            verdict=Verdict.FAILED if case in ("tokens", "moved") else Verdict.DECIDED,
            subject=(self.sources["model"],),
            facts=facts,
            names=names,
        )

    @property
    def table(self) -> Table:
        """One row per layer: the mean norm and, of a comparison, how far embeddings have moved."""
        norms, then = (one.numbers[:, self.compared, 0] for one in (self, self.before or self))
        moved = self.distances[:, self.compared]
        squares = (moved * then) ** 2
        cosines = (norms**2 + then**2 - squares) / np.maximum(2 * norms * then, TINY)
        whole = np.sqrt(squares.sum(axis=1) / np.maximum((then**2).sum(axis=1), TINY))
        about = f"estimated from {N_DIRECTIONS} projections: {ERROR[0]} to {ERROR[1]} times as much (95 %)"
        columns = (
            Column("layer", self.layers),
            Column("norm", norms.mean(axis=1).tolist(), form=".5g", meaning="Mean norm of the embeddings."),
            Column("norm_before", then.mean(axis=1).tolist(), form=".5g"),
            Column("distance", whole.tolist(), form=_percent, meaning=f"Distance, all texts together, {about}."),
            Column("largest", moved.max(axis=1).tolist(), form=_percent, meaning="Largest distance of a text."),
            Column("cosine", cosines.mean(axis=1).tolist(), form=".6f", meaning="Mean cosine with those before."),
        )
        return Table(columns=columns[:2] if self.before is None else columns, title="Layers")

    @property
    def details(self) -> tuple[Table, ...]:
        """The first changed token of each text, and other differences; none if there are none."""
        before = self.before or self
        ids = ((row, itertools.zip_longest(before.ids[row].split(), self.ids[row].split())) for row in self.changed)
        column = columns_of((row, next(place for place, (a, b) in enumerate(both) if a != b)) for row, both in ids)
        tokens = (
            column("text", lambda at: self.texts[at[0]], form=lambda text: repr(text[:24])),
            column("token", lambda at: at[1] + 1, meaning="Place of the first that differs, from 1."),
            column("was", lambda at: before.token(*at)),
            column("now", lambda at: self.token(*at)),
            column("moved", lambda at: float(self.distances[-1, at[0]]), form=_percent, title="embedding moved"),
        )
        names = before.sources | self.sources
        column = columns_of(name for name in names if before.sources.get(name) != self.sources.get(name))
        others = (
            column("what", str),
            column("before", lambda name: before.sources.get(name, "")),
            column("now", lambda name: self.sources.get(name, "")),
        )
        tables = Table(columns=tokens, title="Changed tokens"), Table(columns=others, title="Other differences")
        return tuple(table for table in tables if len(table))

    def token(self, row: int, place: int) -> str:
        """Return a token of a text with its id; after the last one, `end`."""
        ids, tokens = self.ids[row].split(), self.tokens[row].split(" ")
        return f"{tokens[place]} ({ids[place]})" if place < len(ids) else "end"


def _percent(share: float) -> str:
    return words.text(Fact(value=share, unit="share"))


def snapshot(model: ModelLike, against: str | Path | Snapshot | None = None) -> Snapshot:
    """Return the tokens and embeddings of 32 texts, to save or to compare with earlier ones.

    `save(snapshot(model), "model.json")` keeps them; later, `snapshot(model, "model.json").verdict` is `failed` if
    tokens have changed or embeddings have moved by more than rounding.

    Args:
        model: A name, a folder, a `Model`, or a loaded model. Options at their defaults are those of the file.
        against: An earlier snapshot, or its file.

    Raises:
        DataError: If the file holds no snapshot, or the model reads images.
        ModelError: If the model cannot be loaded.
    """
    before = load_result(against) if isinstance(against, str | Path) else against
    if not isinstance(before, Snapshot | None):
        raise DataError(f"expected a file that check --save wrote, got a {type(before).__name__} in {against}")
    checkpoint = resolve(model, items="text")
    if before is not None:
        usual = [name for name in before.options if getattr(checkpoint.asked, name) == getattr(DEFAULTS, name)]
        checkpoint = checkpoint.with_options(**{name: before.options[name] for name in usual})
    encoder, asked = load(checkpoint, cut=False), checkpoint.asked
    limit, size, on_gpu = encoder.limit(checkpoint.max_length), encoder.description, encoder.device.type == "cuda"
    texts = before.texts if before else (*json.loads(TEXTS.read_text("utf-8")), " ".join(map(str, range(limit + 1))))
    key = Extraction.of(checkpoint, texts).key(texts, read=bool(encoder.description.read))
    read = cast(TokenizedTexts, tokens_of(encoder, texts, key))
    embeddings = embed_tokens(encoder, key, asked.batch_tokens, None, read)
    ids = [read.ids[start:end].tolist() for start, end in itertools.pairwise(read.ends)]
    layers, names = (0, size.n_blocks // 2, size.n_blocks), encoder.tokenizer.convert_ids_to_tokens
    sources = {name: str(value) for name, value in to_dict(key).items()} | {
        "model": checkpoint.label,
        "architecture": f"{size.architecture}, {size.n_blocks} blocks of {size.hidden_size} features",
        "max_length": str(limit),
        "attention": str(encoder.model.config._attn_implementation),
        "layerprobe": __version__,
        **versions(),
        "device": encoder.device.type,
        "processor": torch.cuda.get_device_name(encoder.device) if on_gpu else processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        sources["sentence-transformers"] = metadata.version("sentence-transformers")
    return Snapshot(
        options={name: value for name in OPTIONS if (value := getattr(asked, name)) != getattr(DEFAULTS, name)},
        sources=sources,
        texts=texts,
        ids=tuple(" ".join(map(str, row)) for row in ids),
        tokens=tuple(" ".join(one_line(str(name)).replace(" ", "␣") for name in names(row)) for row in ids),
        layers=layers,
        embeddings=tuple(_sketch(layer, embeddings[layer].astype(np.float64)) for layer in layers),
        before=before,
    )


def _sketch(layer: int, vectors: NDArray[np.float64]) -> tuple[str, ...]:
    """Return the norm of each embedding, (text, feature), and its projections, to seven digits.

    Signs are bits of SHAKE-256, which no library's random numbers change.
    """
    width = vectors.shape[1]
    seeds = [f"{layer}/{number}".encode() for number in range(N_DIRECTIONS)]
    bits = np.array([bytearray(hashlib.shake_256(seed).digest(width // 8 + 1)) for seed in seeds], dtype=np.uint8)
    signs = 2.0 * np.unpackbits(bits, axis=1)[:, :width] - 1
    values = np.column_stack([np.linalg.norm(vectors, axis=1), vectors @ signs.T])
    return tuple(" ".join(f"{value:.7g}" for value in row) for row in values)
