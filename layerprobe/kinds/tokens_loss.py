"""Training of word tags: a linear head on the state of each word's first token. Knows sentences and tensors."""

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.context import part, report
from layerprobe.encoders.batching import CHUNK, Batch, TokenizedTexts
from layerprobe.encoders.encoder import Encoder, check_known, reads_token_types
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import first_use, load
from layerprobe.encoders.model import Model, Pooling
from layerprobe.errors import DataError
from layerprobe.extraction.embed import kept_token_states, token_states
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.tokens import TaggedSentences
from layerprobe.metrics.names import Split
from layerprobe.scoring.probes import LOGISTIC, logistic_weights
from layerprobe.scoring.score import kept_scores, layer_scores
from layerprobe.scoring.values import LayerScores
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Items, Task
from layerprobe.versions import WORD_PROBE_VERSION

NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedWords:
    """Sentences as token ids, with the first token of each word."""

    texts: TokenizedTexts
    """One text per sentence."""
    ends: NDArray[np.int64]
    """(sentence + 1,) bounds: sentence i has the words `ends[i]` to `ends[i + 1]`."""
    first: NDArray[np.int64]
    """(word,) position of its first token in its sentence; `NO_TOKEN` if it has none, or is cut off."""
    n_cut: int
    """Number of words cut off by the maximum length."""

    @property
    def sentence(self) -> NDArray[np.int64]:
        """(word,) number of its sentence."""
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))


def tokenize_words(
    encoder: Encoder, sentences: Sequence[Sequence[str]], *, max_length: int | None = None
) -> TokenizedWords:
    """Return sentences as token ids, cut at the model's own limit or `max_length`, and the first token of every word.

    They are those of transformers for words (`is_split_into_words`); tokenizers that begin words with a space are used
    with `add_prefix_space`. Slow tokenizers, which do not report words, get one word at a time.
    """
    tokenizer, limit = encoder.tokenizer, encoder.limit(max_length)
    n_special = tokenizer.num_special_tokens_to_add()
    if limit <= n_special:
        raise DataError(f"expected a maximum length of more than the {n_special} special tokens, got {limit}")
    ids: list[list[int]] = []
    first: list[NDArray[np.int64]] = []
    types: list[list[int]] = []
    n_cut = n_truncated = 0
    token_types = reads_token_types(encoder.model)
    with model_errors(encoder.description.name, "tokenizing", advice="take another checkpoint, or drop odd texts"):
        tokenized = _all_words if tokenizer.is_fast else _word_by_word
        for words, tokens, of_type, places, cut in tokenized(tokenizer, sentences, limit):
            if not tokens:
                raise DataError(f"the tokenizer finds no token in the text {' '.join(words)[:60]!r}: remove it")
            ids.append(tokens)
            first.append(places)
            types.append(of_type if token_types else [])
            n_cut += cut
            n_truncated += cut > 0
    flat = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int32)
    check_known(encoder.model, flat)
    texts = TokenizedTexts(
        ids=flat,
        types=np.fromiter(itertools.chain.from_iterable(types), dtype=np.uint8) if any(types) else None,
        ends=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        pad_id=tokenizer.pad_token_id or 0,
        pad_type=tokenizer.pad_token_type_id,
        padding_side=tokenizer.padding_side,
        n_truncated=n_truncated,
    )
    return TokenizedWords(
        texts=texts,
        ends=np.cumsum([0, *map(len, sentences)], dtype=np.int64),
        first=np.concatenate([np.zeros(0, dtype=np.int64), *first]),
        n_cut=n_cut,
    )


_Tokens = tuple[Sequence[str], list[int], list[int], NDArray[np.int64], int]
"""Words, token ids, token types (if any), the position of each word's first token, and the number of words cut off."""


def _all_words(tokenizer: Any, sentences: Sequence[Sequence[str]], limit: int) -> Iterator[_Tokens]:
    space = " " if _begins_words_with_a_space(tokenizer) else ""
    for start in range(0, len(sentences), CHUNK):
        part = sentences[start : start + CHUNK]
        spaced = [[space + word for word in words] for words in part]
        # untruncated, to distinguish words that are cut off from those without a token
        whole = tokenizer(
            spaced, is_split_into_words=True, truncation=False, return_attention_mask=False, verbose=False
        )
        cut = tokenizer(
            spaced, is_split_into_words=True, truncation=True, max_length=limit, return_attention_mask=False
        )
        for i, words in enumerate(part):
            places = _places(cut.word_ids(i), len(words))
            n_cut = int(((places == NO_TOKEN) & (_places(whole.word_ids(i), len(words)) != NO_TOKEN)).sum())
            yield words, cut["input_ids"][i], cut["token_type_ids"][i] if "token_type_ids" in cut else [], places, n_cut


def _places(word_ids: Sequence[int | None], n_words: int) -> NDArray[np.int64]:
    places = np.full(n_words, NO_TOKEN, dtype=np.int64)
    for place, word in reversed(list(enumerate(word_ids))):
        if word is not None:
            places[word] = place
    return places


def _begins_words_with_a_space(tokenizer: Any) -> bool:
    """Return whether tokens of words in a text include the space before them, as in GPT-2 and RoBERTa."""
    text, alone, spaced = (
        tokenizer(text, is_split_into_words=isinstance(text, list), add_special_tokens=False)["input_ids"]
        for text in ("two two", ["two", "two"], [" two", " two"])
    )
    second = spaced[len(spaced) // 2 :]
    return bool(second) and alone != text and text[-len(second) :] == second


def _word_by_word(tokenizer: Any, sentences: Sequence[Sequence[str]], limit: int) -> Iterator[_Tokens]:
    ids_of: dict[str, list[int]] = {}
    room = limit - tokenizer.num_special_tokens_to_add()
    sample = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("two"))[:1]
    before = tokenizer.build_inputs_with_special_tokens(sample).index(sample[0])
    for words in sentences:
        for word in words:
            if word not in ids_of:
                ids_of[word] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))
        pieces = [ids_of[word] for word in words]
        ids = list(itertools.chain.from_iterable(pieces))[:room]
        starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)[:-1]
        empty = np.array([not piece for piece in pieces], dtype=bool)
        cut = (starts >= room) & ~empty
        built = tokenizer.build_inputs_with_special_tokens(ids)
        yield words, built, [0] * len(built), np.where(cut | empty, NO_TOKEN, starts + before), int(cut.sum())


class WordClasses(Criterion):
    """W s + b of the state s of every word's first token, trained on cross entropy.

    All words have equal weight in an epoch: the loss of a sentence is the sum over its words,
    divided by the mean number of words per sentence. A step's loss is then that of transformers' own recipe, the mean
    over the words of the step, up to their number.

    Source: Devlin et al. 2019 (BERT), section 5.3, with the first token of a word.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, n_labels)

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the sentences as token ids, cut at `max_length` tokens, each an example."""
        assert isinstance(items, TaggedSentences)
        words = tokenize_words(encoder, items.words, max_length=max_length)
        return PreparedItems(
            texts=words.texts,
            sides=(np.arange(len(items)),),
            tokens=np.array(words.texts.lengths, dtype=np.int64),
            gold=items.gold,
            targets=(words, items.word_tags),
        )

    @classmethod
    def cut(cls, encoder: Encoder, items: Sequence[Items], *, max_length: int) -> str:
        """Return a line on words cut off; empty without any."""
        sentences = [words for part in items if isinstance(part, TaggedSentences) for words in part.words]
        n_cut = tokenize_words(encoder, sentences, max_length=max_length).n_cut
        limit = encoder.limit(max_length)
        n_words = sum(map(len, sentences))
        cut = f"{n_cut:,} of {n_words:,} words were cut off at {limit} tokens: they get the first tag"
        return cut if n_cut else ""

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return the logits of every token, (text, token, classes)."""
        return self.head(states.float())

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of the sentences `rows`, from (sentence, token, classes) logits."""
        targets, tags = items.targets
        ends = targets.ends
        words = np.concatenate([np.arange(ends[row], ends[row + 1]) for row in rows])
        sentence = np.repeat(np.arange(len(rows)), ends[rows + 1] - ends[rows])
        seen = targets.first[words] != NO_TOKEN
        words, sentence = words[seen], sentence[seen]
        places = torch.from_numpy(targets.first[words])
        logits = states[torch.from_numpy(sentence).to(states.device), places.to(states.device)]
        per_sentence = max(float((targets.first != NO_TOKEN).sum()) / max(len(ends) - 1, 1), 1.0)
        loss = F.cross_entropy(logits, torch.from_numpy(tags[words]).to(states.device), reduction="sum")
        return loss / (per_sentence * len(rows))

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the (word, classes) logits of all words; 0 without a token, so that the first tag wins."""
        words: TokenizedWords = items.targets[0]
        outputs = np.zeros((len(words.first), states[0].shape[-1]))
        for sentence, logits in enumerate(states):
            place = slice(words.ends[sentence], words.ends[sentence + 1])
            first = words.first[place]
            outputs[place][first != NO_TOKEN] = logits[first[first != NO_TOKEN]]
        return outputs


logger = logging.getLogger(__name__)

WORDS = 20_000
"""Largest number of training words for a probe, up to the rest of a sentence."""
KEPT = "word-probes"
"""Name of their scores in the store."""


def score_words(checkpoint: Resolved, task: Task, *, split: Split) -> LayerScores:
    """Return the scores of logistic regression on frozen token states by layer, from the store or fitted."""
    options = checkpoint.asked
    train, scored = (cast(TaggedSentences, task.split(part)).prompted(checkpoint.prompt) for part in ("train", split))
    encoder, reason = first_use(checkpoint, cut=False)
    settings = [
        checkpoint.max_length or 0,
        options.norm,
        options.attn,
        checkpoint.computed_on,
        *["read"] * bool(reason),
    ]
    version, of_task = [WORD_PROBE_VERSION, LOGISTIC.version, WORDS], [task.digest, split]
    key = digest({"versions": version, **checkpoint.store_identity, "task": of_task, "options": settings})
    store = Store(options.cache_dir)
    if (stored := kept_scores(store, KEPT, key)) is not None:
        return stored
    encoder = encoder or load(checkpoint, cut=False)
    gold = scored.gold
    with part(start=0, share=0.63, whole=1):
        weights = _fitted(encoder, train, options)
    with part(start=0.63, share=0.27, whole=1):
        outputs = _outputs(encoder, scored, weights, options)
    by_layer = [evaluate_outputs(task.kind, output, gold) for output in outputs]
    scores = layer_scores(task, split, "probe", by_layer, first_layer=0)
    store.save_result(KEPT, key, scores)
    return scores


Weights = list[tuple[NDArray[np.float32], NDArray[np.float32]]]
"""(width, classes) weights and (classes,) biases by layer."""


def _tokenized(encoder: Encoder, sentences: TaggedSentences, options: Model, split: str) -> TokenizedWords:
    words = tokenize_words(encoder, sentences.words, max_length=options.max_length)
    if words.n_cut:
        limit, n = encoder.limit(options.max_length), len(words.first)
        logger.warning("%d of %d words of the %s split were cut off at %d tokens", words.n_cut, n, split, limit)
    return words


def _fitted(encoder: Encoder, train: TaggedSentences, options: Model) -> Weights:
    order = np.random.default_rng(0).permutation(len(train))
    enough = int(np.searchsorted(np.cumsum([len(train.words[i]) for i in order]), WORDS)) + 1
    chosen = train.take(np.sort(order[:enough]).tolist())
    if len(chosen) < len(train):
        note = "the probe is fitted on %d of %d training words, a random choice of sentences"
        logger.warning(note, chosen.n_outputs, train.n_outputs)
    words, tags = _tokenized(encoder, chosen, options, "train"), chosen.word_tags
    seen = words.first != NO_TOKEN
    if not seen.any():
        raise DataError("expected training words with tokens, got none: is the maximum length too small?")
    with contextlib.ExitStack() as stack:
        with part(start=0, share=0.3, whole=1):
            states = stack.enter_context(
                kept_token_states(
                    encoder,
                    words.texts,
                    words.sentence[seen],
                    words.first[seen],
                    batch_tokens=options.batch_tokens,
                )
            )
        weights = []
        for layer, values in enumerate(states):
            weights.append(logistic_weights(np.array(values), tags[seen], len(train.labels)))
            report("fitting probes", 0.3 + 0.7 * (layer + 1) / len(states), 1)
        return weights


def _outputs(encoder: Encoder, scored: TaggedSentences, weights: Weights, options: Model) -> NDArray[np.float64]:
    """Return the (layer, word, classes) logits of all words; 0 without a token."""
    words = _tokenized(encoder, scored, options, "scored")
    outputs = np.zeros((len(weights), len(words.first), len(scored.labels)))
    batches = token_states(encoder, words.texts, batch_tokens=options.batch_tokens)
    for numbers, states in batches:
        for i, number in enumerate(numbers):
            place = np.arange(words.ends[number], words.ends[number + 1])
            place = place[words.first[place] != NO_TOKEN]
            for layer, (weight, bias) in enumerate(weights):
                outputs[layer, place] = states[layer, i, words.first[place]] @ weight + bias
    return outputs
