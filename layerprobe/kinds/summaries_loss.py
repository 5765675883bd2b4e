"""Choosing the sentences of a summary: training, and every layer without fine-tuning.

Source: labels of a greedy oracle: Nallapati, Zhai and Zhou 2017 (AAAI); a linear layer on an encoder's sentences: Liu
and Lapata 2019 (EMNLP, BERTSUM), there with the whole document in one pass.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.context import current, report
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import Resolved
from layerprobe.extraction.embeddings import Embeddings, extract_split
from layerprobe.finetuning.losses import Criterion, PreparedItems, prepared_sides
from layerprobe.kinds.summaries import Array, Centrality, SummaryItems, central
from layerprobe.metrics.names import Split
from layerprobe.scoring.probes import LOGISTIC
from layerprobe.scoring.score import score_outputs
from layerprobe.scoring.values import Way, Ways
from layerprobe.stats.crossed import crossed, errors_known
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Items, Task


class SentenceScorer(Criterion):
    """w u + b of a sentence's embedding u, trained on binary cross entropy: whether the greedy oracle has the sentence.

    An example is a sentence, an item a document. The score of a sentence depends on its text, not on its position.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, 1)

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the sentences of all documents in turn, as token ids."""
        assert isinstance(items, SummaryItems)
        prepared = prepared_sides(encoder, items, max_length=max_length, sides=(items.sentences,))
        return replace(prepared, targets=items.targets)

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean binary cross entropy of the sentences `rows`."""
        targets = torch.from_numpy(items.targets[rows]).to(states.device, torch.float32)
        return F.binary_cross_entropy_with_logits(self.head(states)[:, 0], targets)

    @torch.inference_mode()
    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the (documents, longest document) logits of sentences, 0 after the end of a document."""
        logits = self.head(torch.from_numpy(np.asarray(states)).to(self.head.weight.device))[:, 0]
        return items.gold.arranged(logits.cpu().double().numpy()[items.sides[0]])


score_central = functools.partial(score_outputs, method="centrality")
"""Scores of the most central sentences."""


def summary_ways(checkpoint: Resolved, task: Task) -> Ways:
    """Choose the sentences of each document by every layer in three ways, and compare with the first sentences.

    The ways are centrality by degree and by centroid, without labels, and logistic regression on the frozen embedding
    of a sentence, fitted on whether the greedy oracle has it. Layer and way are chosen on the validation split;
    differences to the first sentences are on test, with intervals over documents. The oracle is an upper bound that
    a choice of sentences is unlikely to exceed.
    """
    level = current().level
    items = {split: cast(SummaryItems, task.split(split)) for split in get_args(Split)}
    embedded = {split: extract_split(checkpoint, task, split) for split in get_args(Split)}
    test, links, n_layers = items["test"], links_of(task.test), embedded["test"].n_layers
    lead, oracle = (evaluate_outputs(task.kind, outputs, test).metrics for outputs in (test.lead(), test.best()))
    first, unit = item_influences(task.kind, test.lead(), test), KINDS[task.kind].unit
    enough = errors_known(len(test), links)
    ways = []
    for number, name in enumerate((*get_args(Centrality), "probe")):
        validation, tested, gains = [], [], []
        for layer in range(n_layers):
            chosen, outputs = _outputs(embedded, items, layer, name)
            validation.append(evaluate_outputs(task.kind, chosen, items["validation"]).metrics[task.primary])
            tested.append(evaluate_outputs(task.kind, outputs, test).metrics)
            influences = (item_influences(task.kind, outputs, test) - first)[None] if enough else None
            gain = [tested[-1][task.primary] - lead[task.primary]]
            gains.append(crossed(gain, influences, links=links, level=level, unit=unit, metric=task.primary))
            report(f"summaries by {embedded['test'].model.name}", number * n_layers + layer + 1, 3 * n_layers)
        by_layer = {metric: tuple(by_metric[metric] for by_metric in tested) for metric in tested[0]}
        ways.append(Way(name=name, validation=tuple(validation), test=by_layer, gains=tuple(gains)))
    return Ways(
        primary=task.primary,
        n_items=len(test),
        unit=unit,
        first_layer=embedded["test"].first_layer,
        collapsed=embedded["test"].collapsed,
        baselines={"first sentence" if test.keep == 1 else f"first {test.keep} sentences": lead, "oracle": oracle},
        ways=tuple(ways),
    )


def _outputs(
    embedded: dict[Split, Embeddings], items: dict[Split, SummaryItems], layer: int, method: str
) -> tuple[Array, Array]:
    """Return the outputs of a method for the validation and the test split."""
    splits: tuple[Split, Split] = ("validation", "test")
    if method in get_args(Centrality):
        by = cast(Centrality, method)
        validation, test = (
            central(embedded[split].measured(layer), embedded[split].rows, items[split], by) for split in splits
        )
        return validation, test
    train = LOGISTIC.features(_sentences(embedded["train"], layer, items["train"]), None)
    both = [LOGISTIC.features(_sentences(embedded[split], layer, items[split]), None) for split in splits]
    probabilities = LOGISTIC.fit(train, items["train"].targets, np.concatenate(both))[:, 1]
    n = len(both[0])
    return items["validation"].arranged(probabilities[:n]), items["test"].arranged(probabilities[n:])


def _sentences(embeddings: Embeddings, layer: int, items: SummaryItems) -> NDArray[np.float32]:
    """Return the embeddings of the sentences of all documents in turn."""
    return embeddings.measured(layer)[embeddings.rows(items.sentences)]
