"""What extractive question answering trains: where the answer begins and ends. Knows windows, and tensors.

Source: Devlin, Chang, Lee and Toutanova 2019 (NAACL), sections 4.2 and 4.3; as run_qa of transformers does, every
window is trained on, and one without the answer on its first special token, whether or not all questions have one.
"""

import logging
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.device import float64_device
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.model import Model, Pooling
from layerprobe.errors import DataError
from layerprobe.extraction.embed import token_states
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.answers.kind import Questions
from layerprobe.kinds.answers.metrics import ALWAYS, answer_threshold
from layerprobe.kinds.answers.windows import Windows, cut_questions_warning, windowed
from layerprobe.metrics.names import Split
from layerprobe.rng import without_autocast
from layerprobe.scoring.probes import LOGIT_VARIANCE
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import kept_scores, layer_scores
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Items, Task
from layerprobe.versions import ANSWER_PROBE_VERSION


class AnswerSpan(Criterion):
    """W h + b of every token: the logits of being the first and the last token of the answer, by cross entropy."""

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
        """Return how many answers are whole in no window, and how many questions are cut; empty where none is."""
        splits = [
            (windowed(encoder, part.questions, part.contexts, max_length=max_length), part.spans)
            for part in items
            if isinstance(part, Questions)
        ]
        return cut_questions_warning(splits, encoder.limit(max_length))

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return the logits of every token, (window, token, 2)."""
        logits: Tensor = self.head(states.float())
        return logits

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean cross entropy of first and last token, over a window's own tokens."""
        lengths = torch.from_numpy(items.tokens[rows]).to(states.device)
        beyond = torch.arange(states.shape[1], device=states.device) >= lengths[:, None]
        logits = states.masked_fill(beyond[:, :, None], -torch.inf)
        return F.cross_entropy(logits, torch.from_numpy(items.targets[1][rows]).to(states.device))

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the best span of every question, its score and that of no answer, (question, 4)."""
        windows: Windows = items.targets[0]
        return windows.spans(states)


# ---- untrained ----------------------------------------------------------------------------------------


KEPT = "answer-probes"
BATCH_TOKENS = 4096

logger = logging.getLogger(__name__)

Use = Callable[[list[int], int, Tensor], None]
"""Windows of a batch, a layer, and its states of their own tokens, one behind the other, (token, width)."""


def answer_probe(checkpoint: Resolved, task: Task, *, split: Split) -> LayerScores:
    """Return what the probe scores at every layer, from the store, or fitted on the train split now.

    Where questions of the validation split have no answer, the threshold is chosen there.
    """
    options = checkpoint.asked
    settings = [checkpoint.max_length, checkpoint.prompt, options.norm, options.attn, checkpoint.computed_on]
    key = digest([ANSWER_PROBE_VERSION, checkpoint.identity, settings, task.digest, split])
    store = Store(options.cache_dir)
    if (stored := kept_scores(store, KEPT, key)) is not None:
        return stored
    encoder = load(checkpoint)
    validation = cast(Questions, task.validation)
    chosen = split == "validation" or not all(validation.answers)
    names: list[Split] = ["train", "validation", split] if chosen else ["train", split]
    windows = {name: _windowed(encoder, cast(Questions, task.split(name)), checkpoint) for name in dict.fromkeys(names)}
    spans = [(part, cast(Questions, task.split(name)).spans) for name, part in windows.items()]
    if warning := cut_questions_warning(spans, encoder.limit(checkpoint.max_length)):
        logger.warning("%s", warning)
    weights = _fitted(encoder, windows["train"], cast(Questions, task.train), options)
    outputs = {name: _spans(encoder, windows[name], weights, options) for name in dict.fromkeys(names[1:])}
    gold = cast(Questions, task.split(split)).gold
    by_layer = []
    for layer, of_layer in enumerate(outputs[split]):
        threshold = answer_threshold(outputs["validation"][layer], validation) if chosen else ALWAYS
        by_layer.append(evaluate_outputs(task.kind, of_layer, gold, threshold=threshold))
    scores = layer_scores(task, split, "probe", by_layer, first_layer=0)
    store.save_result(KEPT, key, scores)
    return scores


def _windowed(encoder: Encoder, items: Questions, model: Resolved) -> Windows:
    items = items.prompted(model.prompt) if model.prompt else items
    return windowed(encoder, items.questions, items.contexts, max_length=model.max_length)


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
        raise DataError("expected an answer in a window of the train split to fit a probe on, got none")
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
        windows: Of which `rows` are read.
        targets: (window, 2) first and last token.
        rows: (w,) numbers.
        states: (token, width) of the windows' own tokens, one behind the other.
    """
    begins = np.cumsum([0, *(windows.texts.length(row) for row in rows)])
    taken = np.concatenate([windows.characters(row)[:, 0] >= 0 for row in rows])
    taken[begins[:-1] + windows.null[rows]] = True
    window = torch.from_numpy(np.repeat(np.arange(len(rows)), np.diff(begins))[taken]).to(states.device)
    device = states.device
    states = states - states[torch.from_numpy(taken).to(device)].mean(dim=0)  # what follows is of differences
    chosen = states[torch.from_numpy(taken).to(device)]
    counts = window.bincount(minlength=len(rows)).to(states.dtype)[:, None]
    means = torch.zeros(len(rows), states.shape[1], device=device).index_add_(0, window, chosen) / counts
    centred = (chosen - means[window]) / counts.sqrt()[window]
    answers = states[torch.from_numpy(begins[:-1, None] + targets[rows]).to(device)] - means[:, None]
    return centred.mT @ centred, answers.sum(dim=0).mT


def newton_step(covariance: Tensor, pull: Tensor, *, n: int) -> Tensor:
    """Return the weights of the first Newton step, (width, 2).

    Features are divided by their deviation within windows; the penalty is width / `LOGIT_VARIANCE`.
    """
    scale = (covariance.diagonal() / n).sqrt()
    scale = torch.where(scale > torch.finfo(torch.float32).eps * scale.max(), scale, torch.inf)  # says nothing
    curvature = covariance / scale / scale[:, None]
    curvature.diagonal().add_(len(scale) / LOGIT_VARIANCE)
    weights: Tensor = torch.linalg.solve(curvature, pull / scale[:, None]) / scale[:, None]
    return weights


def _spans(encoder: Encoder, windows: Windows, weights: Tensor, options: Model) -> list[NDArray[np.float64]]:
    """Return the best spans of all questions by every layer, (question, 4) each."""
    logits: list[list[NDArray[np.float64]]] = [[np.zeros((0, 2))] * len(windows.pairs) for _ in weights]

    def keep(rows: list[int], layer: int, states: Tensor) -> None:
        values = (states @ weights[layer].float().to(states.device)).cpu().numpy()
        ends = np.cumsum([windows.texts.length(row) for row in rows])
        for row, scores in zip(rows, np.split(values, ends[:-1]), strict=True):
            logits[layer][row] = scores

    _read(encoder, windows, options, keep)
    return [windows.spans(layer) for layer in logits]
