"""Questions and contexts -> windows of tokens that a model reads as pairs, and back to spans of characters.

Knows tokenizers and numbers; runs no model. As in the usual recipe (BERT's run_squad, run_qa of transformers), a
context that is too long is read in overlapping windows, each with the whole question, and the first special token
stands for no answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from layerprobe.encoders.batching import TokenizedTexts
from layerprobe.encoders.encoder import Encoder, reads_token_types
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import DataError

QUESTION_TOKENS = 64
"""Of a question at most, as in BERT's run_squad; never more than half of a window."""
STRIDE = 128
"""Tokens that a window shares with the one before, where it has room for more than twice as many."""
ANSWER_TOKENS = 30
"""Of a predicted answer at most."""
NO_SPAN = -1e9
"""The score of a span where a window has no token of the context."""
CHUNK = 512

Span = tuple[int, int]
"""First character and one past the last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """Questions with parts of their contexts, as token ids."""

    texts: TokenizedTexts
    """A window each."""
    pairs: NDArray[np.int64]
    """(window,): the number of its question, ascending."""
    offsets: NDArray[np.int32]
    """(token, 2), of all windows: which characters of the context a token is; -1 where it is of no context."""
    null: NDArray[np.int64]
    """(window,): the token that stands for no answer."""
    n_pairs: int
    """Questions."""
    n_cut: int
    """Questions that were cut."""

    def characters(self, window: int) -> NDArray[np.int32]:
        """Return (token, 2) characters of the tokens of one window."""
        return self.offsets[self.texts.ends[window] : self.texts.ends[window + 1]]

    def targets(self, answers: Sequence[Span | None]) -> NDArray[np.int64]:
        """Return the first and the last token of the answer in every window, (window, 2); without it, the null twice.

        Args:
            answers: (question,) characters of the context; None where there is no answer.
        """
        targets = np.stack([self.null, self.null], axis=1)
        for window, pair in enumerate(self.pairs):
            answer, (first, ends) = answers[pair], self.characters(window).T
            inside = np.flatnonzero(first >= 0)
            if answer is None or not len(inside) or first[inside[0]] > answer[0] or ends[inside[-1]] < answer[1]:
                continue
            begin = np.searchsorted(first[inside], answer[0], side="right") - 1
            end = np.searchsorted(ends[inside], answer[1], side="left")
            targets[window] = inside[begin], inside[max(begin, end)]
        return targets

    def lost(self, answers: Sequence[Span | None], targets: NDArray[np.int64]) -> int:
        """Return how many answers are in no window whole."""
        seen = set(self.pairs[targets[:, 1] != self.null].tolist())
        return sum(answer is not None and pair not in seen for pair, answer in enumerate(answers))

    def spans(self, logits: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
        """Return the best span of every question, (question, 4): its characters, its score, and that of no answer.

        The score of a span is the sum of the logits of its first and its last token, at most `ANSWER_TOKENS` apart, and
        the best one of all windows counts; of no answer it is the lowest sum at the null. All spans are looked at; the
        usual scripts look at those of the 20 highest starts and ends.

        Args:
            logits: (token, 2) of each window: of being the first and the last token of the answer.
        """
        best = np.tile([0.0, 0.0, NO_SPAN, np.inf], (self.n_pairs, 1))
        for window, (pair, values) in enumerate(zip(self.pairs, logits, strict=True)):
            if not np.isfinite(values).all():
                raise DataError("expected finite outputs, got NaN or infinity")
            values, places = values.astype(np.float64), self.characters(window)
            best[pair, 3] = min(best[pair, 3], values[self.null[window]].sum())
            inside = np.flatnonzero(places[:, 0] >= 0)
            if not len(inside):
                continue
            begin, end, score = best_span(values[inside, 0], values[inside, 1])
            if score > best[pair, 2]:
                best[pair, :3] = places[inside[begin], 0], places[inside[end], 1], score
        return best


def cut_questions_warning(splits: Sequence[tuple[Windows, Sequence[Span | None]]], limit: int) -> str:
    """Return a warning of the questions and answers that windows of `limit` tokens lose; empty if none.

    Args:
        splits: The windows of some questions, with (question,) answers as `Windows.targets` takes them.
        limit: Tokens of a window at most.
    """
    n_lost = sum(windows.lost(answers, windows.targets(answers)) for windows, answers in splits)
    n_answers = sum(answer is not None for _, answers in splits for answer in answers)
    n_cut, n_questions = (sum(getattr(windows, of) for windows, _ in splits) for of in ("n_cut", "n_pairs"))
    lost = f"{n_lost:,} of {n_answers:,} answers are whole in no window of {limit} tokens" if n_lost else ""
    cut = f"{n_cut:,} of {n_questions:,} questions are cut" if n_cut else ""
    return ", and ".join(filter(None, (lost, cut)))


def best_span(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[int, int, float]:
    """Return i <= j < i + `ANSWER_TOKENS` with the highest starts[i] + ends[j], and that.

    Examples:
        >>> best_span(np.array([0.0, 3.0, 1.0]), np.array([9.0, 0.0, 2.0]))
        (0, 0, 9.0)
    """
    padded = np.concatenate([np.full(ANSWER_TOKENS - 1, -np.inf), starts])
    before = sliding_window_view(padded, ANSWER_TOKENS)  # row j: the starts up to j
    place = before.argmax(axis=1)
    sums = before[np.arange(len(ends)), place] + ends
    end = int(sums.argmax())
    return end - ANSWER_TOKENS + 1 + int(place[end]), end, float(sums[end])


def windowed(
    encoder: Encoder, questions: Sequence[str], contexts: Sequence[str], *, max_length: int | None = None
) -> Windows:
    """Return questions and contexts as windows of at most `max_length` tokens, by default 512, or what the model reads.

    Question first, with special tokens and token types as the tokenizer writes pairs.
    """
    tokenizer, limit = encoder.tokenizer, encoder.limit(max_length)
    if not tokenizer.is_fast:
        raise DataError(
            f"expected a fast tokenizer, which knows where tokens are in a text, got {type(tokenizer).__name__}"
        )
    room = limit - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 4:
        raise DataError(f"expected room for a question and a context, got a maximum length of {limit} tokens")
    longest = min(QUESTION_TOKENS, room // 2)
    with model_errors(encoder.description.name, "tokenizing", advice="take another checkpoint, or drop odd texts"):
        cut = _cut(tokenizer, questions, longest)
        types = reads_token_types(encoder.model)
        stride = min(STRIDE, (room - longest) // 2)
        parts = [
            _part(tokenizer, cut[at : at + CHUNK], contexts[at : at + CHUNK], limit, stride, types, at)
            for at in range(0, len(cut), CHUNK)
        ]
    ids, token_types, offsets, null, pairs = zip(*(row for part in parts for row in part), strict=True)
    largest = max((int(tokens.max()) for tokens in ids), default=0)
    vocabulary = getattr(encoder.model.config, "vocab_size", np.inf)
    if largest >= vocabulary:
        raise DataError(f"the tokenizer gives token {largest} where the model knows {vocabulary} tokens")
    return Windows(
        texts=TokenizedTexts(
            ids=np.concatenate(ids),
            types=np.concatenate(token_types) if types and token_types[0] is not None else None,
            ends=np.cumsum([0, *map(len, ids)], dtype=np.int64),
            pad_id=tokenizer.pad_token_id or 0,
            pad_type=tokenizer.pad_token_type_id,
            padding_side=tokenizer.padding_side,
            n_truncated=0,
        ),
        pairs=np.array(pairs, dtype=np.int64),
        offsets=np.concatenate(offsets),
        null=np.array(null, dtype=np.int64),
        n_pairs=len(questions),
        n_cut=sum(short != whole for short, whole in zip(cut, questions, strict=True)),
    )


_Row = tuple[NDArray[np.int32], NDArray[np.uint8] | None, NDArray[np.int32], int, int]
"""Token ids, types, characters of the context, the token of no answer, and the number of the question of a window."""


def _cut(tokenizer: Any, questions: Sequence[str], longest: int) -> list[str]:
    """Return the questions, cut where they have more tokens."""
    if not questions:
        return []
    encoded = tokenizer(list(questions), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [
        question if len(offsets) <= longest else question[: offsets[longest - 1][1]]
        for question, offsets in zip(questions, encoded["offset_mapping"], strict=True)
    ]


def _part(
    tokenizer: Any, questions: Sequence[str], contexts: Sequence[str], limit: int, stride: int, types: bool, first: int
) -> list[_Row]:
    encoded = tokenizer(
        list(questions),
        list(contexts),
        truncation="only_second",
        max_length=limit,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    rows = []
    for i, ids in enumerate(encoded["input_ids"]):
        of_context = np.array([sequence == 1 for sequence in encoded.sequence_ids(i)])
        offsets = np.array(encoded["offset_mapping"][i], dtype=np.int32).reshape(-1, 2)
        offsets[~of_context] = -1
        marks = (tokenizer.cls_token_id, tokenizer.bos_token_id)
        of_type = np.array(encoded["token_type_ids"][i], np.uint8) if types and "token_type_ids" in encoded else None
        null = next((ids.index(mark) for mark in marks if mark is not None and mark in ids), 0)
        pair = first + encoded["overflow_to_sample_mapping"][i]
        rows.append((np.array(ids, dtype=np.int32), of_type, offsets, null, pair))
    return rows
