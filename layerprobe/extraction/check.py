"""Checks of a model before it is used: how its tokenizer reads texts, and whether layerprobe's assumptions hold.

The former loads no weights.
"""

import functools
import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerprobe.encoders.batching import Batch, ImageReader
from layerprobe.encoders.encoder import Encoder, float32_attention
from layerprobe.encoders.graphs import USUAL_TEXTS, BackendSurvey, survey
from layerprobe.encoders.identity import ModelLike, resolve
from layerprobe.encoders.loading import (
    TRUNCATION_TOLERANCE,
    as_read,
    load_encoder,
    look,
    look_inside,
    probe_batch,
    truncation_errors,
)
from layerprobe.encoders.model import ModelDescription, described
from layerprobe.encoders.vocabulary import FEW_MISSING, missing_share
from layerprobe.errors import option
from layerprobe.files.images import caption_texts, prompted
from layerprobe.names import counted
from layerprobe.results.conclusion import Check as Remark
from layerprobe.results.conclusion import Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table, columns_of
from layerprobe.rng import without_autocast
from layerprobe.tasks.quality import MANY_TOKENS, DataQuality

LOOKED_AT = 2000
"""Most texts to examine; more are sampled at equal distances."""
WORDS = 200
"""Most different words that are read one by one."""
FEWEST_WORDS = 5
MOST_TOKENS = 1_000_000
"""Largest vocabulary of words; beyond it are all characters of Unicode, as in CANINE."""
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_WORD = re.compile(r"[^\W\d_]{4,}")
_MARKS = re.compile(r"^(##|[▁Ġ ])|</w>$")
"""Marks on tokens of a vocabulary besides letters."""


def with_tokens(
    quality: DataQuality,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    limit: int,
    model: str,
    windowed: Collection[str] = (),
) -> DataQuality:
    """Return the quality extended by the tokenizer's reading of texts, or of `LOOKED_AT` of them.

    Texts in `windowed` are never truncated.
    """
    step = max(1, math.ceil(len(texts) / LOOKED_AT))
    texts = [text for text in texts[::step] if text.strip()]
    offsets = bool(tokenizer.is_fast)
    encoded = tokenizer(
        texts, add_special_tokens=False, truncation=False, return_offsets_mapping=offsets, verbose=False
    )
    unknown, n_characters, n_lost = tokenizer.unk_token_id, 0, 0
    for row, text in enumerate(texts):
        ids = encoded["input_ids"][row]
        characters = _visible(text)
        n_characters += characters
        if offsets:
            spans = zip(ids, encoded["offset_mapping"][row], strict=True)
            n_lost += _visible(_unread(text, [span for token, span in spans if token != unknown]))
        elif ids:
            n_lost += round(characters * sum(token == unknown for token in ids) / len(ids))
    by_text = [len(ids) + tokenizer.num_special_tokens_to_add() for ids in encoded["input_ids"]]
    n_cut = sum(length > limit and text not in windowed for length, text in zip(by_text, texts, strict=True))
    tokens_per_letter, example = _words(tokenizer, texts) if _has_words(tokenizer) else (0.0, ())
    missing = missing_share(tokenizer, texts)
    sizes = (len(tokenizer.get_vocab()), tokenizer.whole.get_vocab_size()) if missing > FEW_MISSING else None
    return replace(
        quality,
        model=model,
        tokens_per_letter=tokens_per_letter,
        example=example,
        missing="" if sizes is None else f"of {counted(len(texts), 'text')}, {missing_sentence(missing, sizes)}",
        unknown_characters=n_lost / max(1, n_characters),
        limit=limit,
        truncated=n_cut / max(1, len(texts)),
    )


@functools.lru_cache(maxsize=2)
def _has_words(tokenizer: Any) -> bool:
    """Return whether most tokens of a vocabulary have several letters."""
    if len(tokenizer) > MOST_TOKENS:
        return False
    tokens = {*map(str, tokenizer.convert_ids_to_tokens(range(len(tokenizer))))} - {*tokenizer.all_special_tokens}
    words = [token for token in tokens if not _BYTE.match(token)]
    return sum(len(_MARKS.sub("", token)) > 1 for token in words) > len(words) / 2


def _words(tokenizer: Any, texts: Sequence[str]) -> tuple[float, tuple[str, ...]]:
    """Return the tokens per letter of some words and, if they are many, the worst word with its tokens.

    Scripts with one sign per syllable or word, such as Chinese, are ignored.
    """
    every = (word.casefold() for text in texts for word in _WORD.findall(text))
    spaced = (word for word in every if unicodedata.east_asian_width(word[0]) not in "WF")
    words = list(dict.fromkeys(itertools.islice(spaced, 10 * WORDS)))[:WORDS]
    if len(words) < FEWEST_WORDS:
        return 0.0, ()
    read = tokenizer(words, add_special_tokens=False)["input_ids"]
    per_letter = sum(map(len, read)) / sum(map(len, words))
    word, ids = max(zip(words, read, strict=True), key=lambda pair: len(pair[1]))
    example = word, *map(str, tokenizer.convert_ids_to_tokens(ids))
    return per_letter, example if per_letter > MANY_TOKENS else ()


def missing_sentence(missing: float, tokens: tuple[int, int]) -> str:
    """Return the share of texts' tokens that are no longer in the vocabulary, and what to do."""
    return (
        f"{100 * missing:.0f} % of their tokens were removed from its vocabulary, which has {tokens_phrase(tokens)}, "
        "and are spelt with shorter ones, so embeddings are worse: keep the tokens of texts in this language and "
        "domain, or use the whole model"
    )


def tokens_phrase(tokens: tuple[int, int]) -> str:
    """Return the number of tokens kept, out of the vocabulary.

    Examples:
        >>> tokens_phrase((15000, 30522))
        '15,000 of 30,522 tokens'
    """
    return f"{tokens[0]:,} of {tokens[1]:,} tokens"


def _visible(text: str) -> int:
    """Return the number of characters that are not white space."""
    return sum(map(len, text.split()))


def _unread(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the characters outside of all spans."""
    unread = bytearray(b"\1") * len(text)
    for start, stop in spans:
        unread[start:stop] = bytes(stop - start)
    return "".join(itertools.compress(text, unread))


PADDING = {
    True: "a text's states do not depend on the padding beside it",
    False: "padding changes a text's states: batches have texts of one length, which is slower",
}

NORMS = {
    "none": "post-norm: a truncated model outputs the hidden state itself",
    "final": "pre-norm: the final norm is applied at every layer, as truncated models do",
    "raw": "pre-norm: the final norm is left out at every layer, unlike in truncated models",
    "last": "pre-norm: the final norm is applied at the last layer only",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    finding: str
    """Finding in plain words."""
    warning: bool = False
    """Whether layerprobe can work around a failed check."""

    @property
    def result(self) -> str:
        """Result in one word."""
        return "ok" if self.passed else "warning" if self.warning else "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Shown):
    """The results of the self-check."""

    model: ModelDescription
    checks: tuple[Check, ...]
    backends: BackendSurvey | None = None
    """Speed and correctness of each backend on this machine; None if not measured."""
    data: DataQuality | None = None
    """Quality of the given texts or task, if any."""

    @property
    def healthy(self) -> bool:
        """Whether every check passed or is a warning."""
        return all(check.passed or check.warning for check in self.checks)

    @property
    def conclusion(self) -> Conclusion:
        """Whether layerprobe can trust the model, with the failed checks."""
        results, model = [check.result for check in self.checks], self.model
        passed, warned, failed = (results.count(result) or None for result in ("ok", "warning", "FAILED"))
        facts = counts(passed=passed, warned=warned, failed=failed)
        facts["parameters"] = Fact(value=model.parameters[-1], unit="parameters")
        facts |= counts(blocks=model.n_blocks, features=model.hidden_size)
        backends: tuple[Remark, ...] = ()
        if self.backends is not None:
            chosen = {"option": option("backend", "auto"), "chosen": self.backends.chosen, "why": self.backends.reason}
            backends = (Remark(name="backend", passed=None, names=chosen),)
        return Conclusion(
            kind="check",
            case="model",
            verdict=Verdict.DECIDED if self.healthy else Verdict.FAILED,
            subject=(model.name,),
            facts=facts,
            names={"architecture": model.architecture},
            checks=backends,
        )

    @property
    def table(self) -> Table:
        """One row per check."""
        column = columns_of(self.checks)
        return Table(columns=(column("name", title="check"), column("result"), column("finding")), title="Checks")

    @property
    def details(self) -> tuple[Table, ...]:
        """Tables of backends and of data, if any."""
        return tuple(part.table for part in (self.backends, self.data) if part is not None)

    @property
    def sources(self) -> dict[str, str]:
        """The model."""
        return described(self.model)


@without_autocast()
@torch.inference_mode()
def examine(encoder: Encoder) -> Diagnosis:
    """Check layers, norm, padding, truncation and numbers of a loaded encoder.

    Truncation is checked at every layer, in float32: the truncated model's states must equal the full model's, unless
    they are read because its blocks cannot be removed. Finiteness of states is checked in the encoder's own precision.
    """
    batch = probe_batch(encoder)
    with float32_attention(encoder.model):
        states = list(encoder.layer_states(batch))
        truncation = _truncation(encoder, states, batch)
    with encoder.precision():
        computed = states if encoder.autocast is None else list(encoder.layer_states(batch))
    bad = [str(layer) for layer, state in enumerate(computed) if not torch.isfinite(state).all()]
    finite = f"not finite at layers {', '.join(bad)}" if bad else "all states are finite"
    model, alike = encoder.description, encoder.padding_invariant
    layers = f"{model.n_blocks} blocks, hidden states of layers 0 to {len(states) - 1}"
    checks = [
        Check(name="layers", passed=len(states) == model.n_layers, finding=layers),
        Check(name="norm", passed=True, finding=NORMS[model.norm]),
    ]
    if encoder.reader is None:
        checks.append(Check(name="padding", passed=alike, finding=PADDING[alike], warning=not alike))
    else:
        checks.insert(0, _images(encoder.reader))
    checks += [truncation, Check(name="finite", passed=not bad, finding=f"{finite} in {model.dtype}")]
    return Diagnosis(model=model, checks=tuple(checks))


def _images(reader: ImageReader) -> Check:
    extra = "no token before them: pooling by mean or max"
    if reader.n_extra:
        others = f" and {counted(reader.n_extra - 1, 'other')}" if reader.n_extra > 1 else ""
        extra = f"[CLS]{others} before them, ignored by mean and max"
    finding = f"{type(reader.processor).__name__}; {reader.n_tokens - reader.n_extra} patches per image, {extra}"
    return Check(name="images", passed=True, finding=finding)


def _truncation(encoder: Encoder, states: list[Tensor], batch: Batch) -> Check:
    if reason := encoder.description.read:
        unread = look_inside(encoder)
        finding = f"layers are read, not cut: {reason}{f', and {unread}' * bool(unread)}"
        return Check(name="truncation", passed=False, finding=finding, warning=not unread)
    if encoder.description.norm == "raw":
        return Check(name="truncation", passed=True, finding="not compared: truncated models apply the final norm")
    errors = truncation_errors(encoder, states, batch)
    wrong = [layer for layer, error in errors.items() if not error <= TRUNCATION_TOLERANCE]  # NaN is wrong as well
    worst = f"largest relative difference {np.max([*errors.values()]):.1e}"  # NaN if there is any
    finding = f"truncated models equal the hidden states at every layer ({worst})"
    if wrong:
        finding = f"truncated models differ from the hidden states at layers {', '.join(map(str, wrong))} ({worst})"
    return Check(name="truncation", passed=not wrong, finding=finding)


def check_model(model: ModelLike, texts: Sequence[str] = USUAL_TEXTS) -> Diagnosis:
    """Load a model, check that layerprobe's assumptions hold for it, and find its best backend on this machine."""
    checkpoint = resolve(model)
    # not with `load`, which refuses faulty models
    encoder = load_encoder(checkpoint)
    encoder = as_read(encoder, look(encoder))
    diagnosis = examine(encoder)
    checks = []
    if checkpoint.towers:
        this, name = checkpoint.modality, checkpoint.name
        others = [tower for tower in checkpoint.towers if tower != this]
        finding = f"this is the {this} tower, which reads {this}s"
        finding += "".join(f"; {tower}s go to the {tower} tower ({name}:{tower})" for tower in others)
        checks.append(Check(name="towers", passed=True, finding=finding))
    if notes := checkpoint.recipe.notes(checkpoint.pooling, checkpoint.prompt):
        checks.append(Check(name="read with", passed=True, finding="; ".join(notes)))
    cautions = checkpoint.tokenizer_cautions
    checks += [Check(name="tokenizer", passed=False, finding=finding, warning=True) for finding in cautions]
    diagnosis = replace(diagnosis, checks=(*checks, *diagnosis.checks))
    if not diagnosis.healthy or encoder.modality == "image":
        return diagnosis
    read = prompted(checkpoint.prompt, caption_texts(texts))
    return replace(diagnosis, backends=survey(encoder, checkpoint, read))
