"""Rules as their authors state them, on the readings of `layerprobe.readings.transferability`."""

from collections.abc import Mapping, Sequence

import numpy as np

from layerprobe.prediction.rule import ModelCurves, Rule, layer_values
from layerprobe.readings.reading import Reading
from layerprobe.readings.registry import CONTRASTIVE_LOSS, H_SCORE, LOG_EVIDENCE

L3PRUNE = "Thennal, Fischer and Biemann 2025 (2410.14578)"
TRANSFORMER_RANKER = "Garbaciauskas et al. 2024 (Findings of ACL, 757)"
DECIMALS = 4
"""To which TransformerRanker rounds its scores."""


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return the two rules of L3Prune and that of TransformerRanker; none of them takes the embedding output."""
    return [
        Rule(name="L3Prune small", curves=(CONTRASTIVE_LOSS,), make=lambda: _small, labelled=True, source=L3PRUNE),
        Rule(name="L3Prune large", curves=(CONTRASTIVE_LOSS,), make=lambda: _large, labelled=True, source=L3PRUNE),
        Rule(
            name="TransformerRanker bestlayer",
            curves=(LOG_EVIDENCE,),
            make=lambda: _best_layer,
            labelled=True,
            source=TRANSFORMER_RANKER,
        ),
    ]


def _small(model: ModelCurves) -> tuple[int, ...]:
    """Return the layer with the lowest loss in the first half of the blocks.

    Source: Thennal, Fischer and Biemann 2025 (arXiv 2410.14578); the halves are those of their code.
    """
    return _lowest_loss(model, 1, max(model.n_blocks // 2, 1))


def _large(model: ModelCurves) -> tuple[int, ...]:
    """Return the layer with the lowest loss in the second half of the blocks."""
    return _lowest_loss(model, model.n_blocks // 2 + 1, model.n_blocks)


def _lowest_loss(model: ModelCurves, first: int, last: int) -> tuple[int, ...]:
    losses = layer_values(model, CONTRASTIVE_LOSS)[first : last + 1]
    return (first + int(losses.argmin()),)


def _best_layer(model: ModelCurves) -> tuple[int, ...]:
    """Return the layer with the highest H-score, its default; where targets are scores, which that refuses, LogME.

    Source: Garbaciauskas et al., Findings of ACL 2024 (2024.findings-acl.757). It scores models by their best layer and
    does not say which of equals that is; here it is the earlier one.
    """
    name = H_SCORE if H_SCORE in model.curves else LOG_EVIDENCE
    scores = np.round(layer_values(model, name)[1:], DECIMALS)
    return (1 + int(scores.argmax()),)
