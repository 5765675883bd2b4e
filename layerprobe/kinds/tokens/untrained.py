"""Frozen token states and the tags of words -> scores of every layer by a probe.

A linear model is fitted on the states of the first tokens of training words, a random choice of sentences where there
are many, and reads the words of a split while they pass.
"""

import contextlib
import logging
from typing import cast

import numpy as np
from numpy.typing import NDArray

from layerprobe.context import part, report
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.token_states import kept_token_states, token_states
from layerprobe.files.serialisation import digest
from layerprobe.kinds.tokens.kind import TaggedSentences
from layerprobe.kinds.tokens.tokenized import NO_TOKEN, TokenizedWords, tokenize_words
from layerprobe.metrics.names import Split
from layerprobe.scoring.probes import LOGISTIC, logistic_weights
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import kept_scores, layer_scores
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Task
from layerprobe.versions import WORD_PROBE_VERSION

logger = logging.getLogger(__name__)

WORDS = 20_000
"""Training words that a probe is fitted on at most, but for the rest of a sentence."""
KEPT = "word-probes"
"""Where the store has their scores."""


def score_words(checkpoint: Resolved, task: Task, *, split: Split) -> LayerScores:
    """Return what logistic regression on frozen token states scores, layer by layer; from the store, or fitted now."""
    options = checkpoint.asked
    train, scored = (cast(TaggedSentences, task.split(part)).prompted(checkpoint.prompt) for part in ("train", split))
    store, key = Store(options.cache_dir), _key(checkpoint, task, split)
    if (stored := kept_scores(store, KEPT, key)) is not None:
        return stored
    encoder = load(checkpoint)
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
"""By layer, (width, classes) and (classes,)."""


def _key(checkpoint: Resolved, task: Task, split: Split) -> str:
    options = checkpoint.asked
    return digest(
        {
            "versions": [WORD_PROBE_VERSION, LOGISTIC.version, WORDS],
            **checkpoint.store_identity,
            "task": [task.digest, split],
            "options": [checkpoint.max_length or 0, options.norm, options.attn, checkpoint.computed_on],
        }
    )


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
    words, tags = _tokenized(encoder, chosen, options, "train"), chosen.gold.tags
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
    """Return the logits of all words at every layer, (layer, word, classes); 0 of those without a token."""
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
