"""Training of extractive question answering: first and last token of the answer, in windows of tokens.

As in the usual recipe (BERT's run_squad, run_qa of transformers), a long context is read in overlapping
windows, each with the whole question. Every window is trained on; the target of a window without the answer is its
first special token, which means no answer, even if all questions have one.

Source: Devlin, Chang, Lee and Toutanova 2019 (NAACL), sections 4.2 and 4.3.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.batching import Batch, TokenizedTexts
from layerprobe.encoders.device import float64_device
from layerprobe.encoders.encoder import Encoder, check_known, reads_token_types
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import first_use, load
from layerprobe.encoders.model import Model, Pooling
from layerprobe.errors import DataError
from layerprobe.extraction.embed import token_states
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.answers import ALWAYS, Questions, answer_threshold
from layerprobe.metrics.names import Split
from layerprobe.rng import without_autocast
from layerprobe.scoring.probes import LOGIT_VARIANCE
from layerprobe.scoring.score import kept_scores, layer_scores
from layerprobe.scoring.values import LayerScores
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Items, Task
from layerprobe.versions import ANSWER_PROBE_VERSION

QUESTION_TOKENS = 64
"""Largest number of tokens of a question, as in BERT's run_squad; never more than half of a window."""
STRIDE = 128
"""Tokens that a window shares with the one before, if it has room for more than twice as many."""
ANSWER_TOKENS = 30
"""Largest number of tokens of a predicted answer."""
NO_SPAN = -1e9
"""Score of a span in a window without tokens of the context."""
CHUNK = 512

Span = tuple[int, int]
"""First character and one past the last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """Questions with parts of their contexts, as token ids."""

    texts: TokenizedTexts
    """Texts of the windows."""
    pairs: NDArray[np.int64]
    """(window,) number of its question, ascending."""
    offsets: NDArray[np.int32]
    """(token, 2) characters of the context for the tokens of all windows; -1 outside the context."""
    null: NDArray[np.int64]
    """(window,) token that means no answer."""
    n_pairs: int
    """Number of questions."""
    n_cut: int
    """Number of truncated questions."""

    def characters(self, window: int) -> NDArray[np.int32]:
        """Return (token, 2) characters of the tokens of one window."""
        return self.offsets[self.texts.ends[window] : self.texts.ends[window + 1]]

    def targets(self, answers: Sequence[Span | None]) -> NDArray[np.int64]:
        """Return the (window, 2) first and last token of the answer in every window; without it, the null twice.

        Args:
            answers: (question,) characters of the context; None without an answer.
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
        """Return the number of answers that no window contains completely."""
        seen = set(self.pairs[targets[:, 1] != self.null].tolist())
        return sum(answer is not None and pair not in seen for pair, answer in enumerate(answers))

    def spans(self, logits: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
        """Return (question, 4): characters and score of the best span of every question, and the score of no answer.

        The score of a span is the sum of the logits of its first and its last token, at most `ANSWER_TOKENS` apart, and
        the best one of all windows counts; the score of no answer is the lowest sum at the null. All spans are
        searched; the usual scripts only search the 20 highest starts and ends.

        Args:
            logits: (token, 2) logits of each window, for the first and the last token of the answer.
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
    """Return a warning about questions and answers truncated by windows of `limit` tokens; empty if none.

    Args:
        splits: Windows of questions, with (question,) answers for `Windows.targets`.
        limit: Largest number of tokens of a window.
    """
    n_lost = sum(windows.lost(answers, windows.targets(answers)) for windows, answers in splits)
    n_answers = sum(answer is not None for _, answers in splits for answer in answers)
    n_cut, n_questions = (sum(getattr(windows, of) for windows, _ in splits) for of in ("n_cut", "n_pairs"))
    lost = f"{n_lost:,} of {n_answers:,} answers do not fit into a window of {limit} tokens" if n_lost else ""
    cut = f"{n_cut:,} of {n_questions:,} questions are cut" if n_cut else ""
    return ", and ".join(filter(None, (lost, cut)))


def best_span(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[int, int, float]:
    """Return i <= j < i + `ANSWER_TOKENS` with the highest starts[i] + ends[j], and this sum.

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
    """Return questions and contexts as windows of at most `max_length` tokens, by default 512 or the model's limit.

    The question comes first, with the special tokens and token types of the tokenizer for pairs.
    """
    tokenizer, limit = encoder.tokenizer, encoder.limit(max_length)
    if not tokenizer.is_fast:
        raise DataError(f"expected a fast tokenizer, which knows the offsets of tokens, got {type(tokenizer).__name__}")
    room = limit - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 4:
        raise DataError(f"expected room for a question and a context, got a maximum length of {limit} tokens")
    longest = min(QUESTION_TOKENS, room // 2)
    with model_errors(encoder.description.name, "tokenizing", advice="use another checkpoint, or drop unusual texts"):
        cut = _cut(tokenizer, questions, longest)
        types = reads_token_types(encoder.model)
        stride = min(STRIDE, (room - longest) // 2)
        parts = [
            _part(tokenizer, cut[at : at + CHUNK], contexts[at : at + CHUNK], limit, stride, types, at)
            for at in range(0, len(cut), CHUNK)
        ]
    ids, token_types, offsets, null, pairs = zip(*(row for part in parts for row in part), strict=True)
    flat = np.concatenate(ids)
    check_known(encoder.model, flat)
    return Windows(
        texts=TokenizedTexts(
            ids=flat,
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


_Window = tuple[NDArray[np.int32], NDArray[np.uint8] | None, NDArray[np.int32], int, int]
"""A window: token ids, types, characters of the context, the token of no answer, and the number of its question."""


def _cut(tokenizer: Any, questions: Sequence[str], longest: int) -> list[str]:
    """Return the questions, truncated to `longest` tokens."""
    if not questions:
        return []
    encoded = tokenizer(list(questions), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [
        question if len(offsets) <= longest else question[: offsets[longest - 1][1]]
        for question, offsets in zip(questions, encoded["offset_mapping"], strict=True)
    ]


def _part(
    tokenizer: Any, questions: Sequence[str], contexts: Sequence[str], limit: int, stride: int, types: bool, first: int
) -> list[_Window]:
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


class AnswerSpan(Criterion):
    """W h + b of every token: logits for the first and the last token of the answer, trained on cross entropy."""

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, 2)

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the windows of the questions, at most `max_length` tokens each."""
        assert isinstance(items, Questions)
        windows = windowed(encoder, items.questions, items.contexts, max_length=max_length)
        lengths = np.array(windows.texts.lengths, dtype=np.int64)
        return PreparedItems(
            texts=windows.texts,
            sides=(np.arange(len(lengths)),),
            tokens=lengths,
            gold=items.gold,
            targets=(windows, windows.targets(items.spans)),
        )

    @classmethod
    def cut(cls, encoder: Encoder, items: Sequence[Items], *, max_length: int) -> str:
        """Return a line on answers that no window contains and on truncated questions; empty without any."""
        splits = [
            (windowed(encoder, part.questions, part.contexts, max_length=max_length), part.spans)
            for part in items
            if isinstance(part, Questions)
        ]
        return cut_questions_warning(splits, encoder.limit(max_length))

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return the logits of every token, (window, token, 2)."""
        return self.head(states.float())

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean cross entropy of first and last token, over a window's own tokens."""
        lengths = torch.from_numpy(items.tokens[rows]).to(states.device)
        beyond = torch.arange(states.shape[1], device=states.device) >= lengths[:, None]
        logits = states.masked_fill(beyond[:, :, None], -torch.inf)
        return F.cross_entropy(logits, torch.from_numpy(items.targets[1][rows]).to(states.device))

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return (question, 4): the best span of every question, its score and that of no answer."""
        windows: Windows = items.targets[0]
        return windows.spans(states)


KEPT = "answer-probes"
BATCH_TOKENS = 4096

logger = logging.getLogger(__name__)

Use = Callable[[list[int], int, Tensor], None]
"""Function of the windows of a batch, a layer, and the (token, width) states of their own tokens, concatenated."""


def answer_probe(checkpoint: Resolved, task: Task, *, split: Split) -> LayerScores:
    """Return the scores of the probe at every layer, from the store or fitted on the train split.

    If questions of the validation split have no answer, the threshold is chosen there.
    """
    options = checkpoint.asked
    encoder, reason = first_use(checkpoint, cut=False)
    settings = [checkpoint.max_length, checkpoint.prompt, options.norm, options.attn, checkpoint.computed_on]
    settings += ["read"] * bool(reason)
    key = digest([ANSWER_PROBE_VERSION, checkpoint.identity, settings, task.digest, split])
    store = Store(options.cache_dir)
    if (stored := kept_scores(store, KEPT, key)) is not None:
        return stored
    encoder = encoder or load(checkpoint, cut=False)
    validation = cast(Questions, task.validation)
    chosen = split == "validation" or not all(validation.answers)
    names: list[Split] = ["train", "validation", split] if chosen else ["train", split]
    items = {name: cast(Questions, task.split(name)).prompted(checkpoint.prompt) for name in dict.fromkeys(names)}
    windows = {
        name: windowed(encoder, part.questions, part.contexts, max_length=checkpoint.max_length)
        for name, part in items.items()
    }
    spans = [(windows[name], part.spans) for name, part in items.items()]
    if warning := cut_questions_warning(spans, encoder.limit(checkpoint.max_length)):
        logger.warning("%s", warning)
    weights = _fitted(encoder, windows["train"], items["train"], options)
    outputs = {name: _spans(encoder, windows[name], weights, options) for name in dict.fromkeys(names[1:])}
    by_layer = []
    for layer, of_layer in enumerate(outputs[split]):
        threshold = answer_threshold(outputs["validation"][layer], validation) if chosen else ALWAYS
        by_layer.append(evaluate_outputs(task.kind, of_layer, items[split], threshold=threshold))
    scores = layer_scores(task, split, "probe", by_layer, first_layer=0)
    store.save_result(KEPT, key, scores)
    return scores


@torch.inference_mode()
@without_autocast()
def _read(encoder: Encoder, windows: Windows, options: Model, use: Use) -> None:
    """Run all windows through the model, and every layer through `use`."""
    lengths = np.array(windows.texts.lengths)
    for rows, states in token_states(encoder, windows.texts, batch_tokens=options.batch_tokens or BATCH_TOKENS):
        inside = np.arange(states.shape[2]) < lengths[rows, None]
        for layer, values in enumerate(states):
            use(rows, layer, torch.from_numpy(values[inside]).to(encoder.device))


def _fitted(encoder: Encoder, windows: Windows, items: Questions, options: Model) -> Tensor:
    """Return the weights of first and last tokens at every layer, (layer, width, 2)."""
    targets = windows.targets(items.spans)
    if (targets[:, 1] == windows.null).all():
        raise DataError("no answer of the train split is in a window, so no probe can be fitted")
    width = encoder.description.hidden_size
    place = float64_device(encoder.device)
    covariances = torch.zeros(encoder.n_layers, width, width, dtype=torch.float64, device=place)
    pulls = torch.zeros(encoder.n_layers, width, 2, dtype=torch.float64, device=place)

    def add(rows: list[int], layer: int, states: Tensor) -> None:
        sums = window_sums(windows, targets, rows, states)
        covariances[layer] += sums[0].to(place)
        pulls[layer] += sums[1].to(place)

    _read(encoder, windows, options, add)
    return torch.stack([newton_step(*system, n=len(windows.pairs)) for system in zip(covariances, pulls, strict=True)])


def window_sums(windows: Windows, targets: NDArray[np.int64], rows: list[int], states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over windows of Cov(x), (width, width), and of x_answer - mean(x), (width, 2).

    Args:
        windows: The windows.
        targets: (window, 2) first and last token.
        rows: (w,) numbers of the windows to use.
        states: (token, width) states of the windows' own tokens, concatenated.
    """
    begins = np.cumsum([0, *(windows.texts.length(row) for row in rows)])
    taken = np.concatenate([windows.characters(row)[:, 0] >= 0 for row in rows])
    taken[begins[:-1] + windows.null[rows]] = True
    window = torch.from_numpy(np.repeat(np.arange(len(rows)), np.diff(begins))[taken]).to(states.device)
    device = states.device
    states = states - states[torch.from_numpy(taken).to(device)].mean(dim=0)  # differences from the mean
    chosen = states[torch.from_numpy(taken).to(device)]
    counts = window.bincount(minlength=len(rows)).to(states.dtype)[:, None]
    means = torch.zeros(len(rows), states.shape[1], device=device).index_add_(0, window, chosen) / counts
    centred = (chosen - means[window]) / counts.sqrt()[window]
    answers = states[torch.from_numpy(begins[:-1, None] + targets[rows]).to(device)] - means[:, None]
    return centred.mT @ centred, answers.sum(dim=0).mT


def newton_step(covariance: Tensor, pull: Tensor, *, n: int) -> Tensor:
    """Return the (width, 2) weights of the first Newton step.

    Features are divided by their deviation within windows; the penalty is width / `LOGIT_VARIANCE`.
    """
    scale = (covariance.diagonal() / n).sqrt()
    scale = torch.where(scale > torch.finfo(torch.float32).eps * scale.max(), scale, torch.inf)  # constant features
    curvature = covariance / scale / scale[:, None]
    curvature.diagonal().add_(len(scale) / LOGIT_VARIANCE)
    return torch.linalg.solve(curvature, pull / scale[:, None]) / scale[:, None]


def _spans(encoder: Encoder, windows: Windows, weights: Tensor, options: Model) -> list[NDArray[np.float64]]:
    """Return the (question, 4) best spans of all questions by layer."""
    logits: list[list[NDArray[np.float64]]] = [[np.zeros((0, 2))] * len(windows.pairs) for _ in weights]

    def keep(rows: list[int], layer: int, states: Tensor) -> None:
        values = (states @ weights[layer].float().to(states.device)).cpu().numpy()
        ends = np.cumsum([windows.texts.length(row) for row in rows])
        for row, scores in zip(rows, np.split(values, ends[:-1]), strict=True):
            logits[layer][row] = scores

    _read(encoder, windows, options, keep)
    return [windows.spans(layer) for layer in logits]
