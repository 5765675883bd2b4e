"""Cross entropy of the cosines of a question with its answers."""

import numpy as np
import torch
from torch.nn import functional as F

from layerprobe.finetuning.losses import Criterion
from layerprobe.metrics.scores import cosine_scores


class RightAnswer(Criterion):
    """-log softmax(20 cos(question, answers)) at the right one."""

    def example_loss(self, kept, items, rows):
        """Return the mean loss of questions, whose texts are (side * question, width)."""
        question, *answers = F.normalize(kept, dim=1).view(len(items.sides), len(rows), -1)
        scores = torch.stack([20 * (question * answer).sum(dim=1) for answer in answers], dim=1)
        return F.cross_entropy(scores, torch.from_numpy(items.targets[rows]).to(kept.device))

    def item_outputs(self, kept, items):
        """Return (n, answer) cosines."""
        question, *answers = (np.asarray(kept)[side] for side in items.sides)
        return np.stack([cosine_scores(question, answer) for answer in answers], axis=1)
