"""What others choose a layer by, as entries of the contest: readings that the zoos have recorded, and rules of them.

Recipes do not compute them; `benchmarks/rival_readings.py` does, but for the last three.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.prediction.rule import Predictor, ReadingPredictor, Rule
from layerprobe.readings.reading import Reading
from layerprobe.similarity.checks import Array


def _rival(description: str, direction: Literal[1, -1, None], source: str, **more: Any) -> Reading:
    return Reading(description=description, direction=direction, compute=lambda _: None, source=source, **more)


RIVALS = {
    "dataset entropy": _rival("entropy of the cosines of texts", None, "2502.02013"),
    "LiDAR": _rival("rank of texts against copies", 1, "2312.04000", needs="views"),
    "DiME": _rival("information that two copies share", 1, "2301.08164", needs="views"),
    "LOES without labels": _rival("isotropy of the principal axes", 1, "2605.23033"),
    "alpha-ReQ": _rival("how far the decay of eigenvalues is from 1", -1, "Agrawal et al. 2022"),
    "subspace displacement": _rival("distance from the first layer", 1, "2605.12714"),
    "neighbour retention": _rival("neighbours kept", 1, "2605.12714", maximum=1.0),
    "LogME": _rival("evidence of a linear model", 1, "2102.11005", needs="labels"),
    "LOES": _rival("ridge error + 1 - isotropy", -1, "2605.23033", needs="labels"),
    "KITE": _rival("CKA with targets over CKA with random features", 1, "2405.01603", needs="labels"),
    "LinMSE": _rival("minus the error of a linear model", 1, "2312.00656", needs="labels"),
    "kNN": _rival("score of the three nearest training items", 1, "2503.18528", needs="labels"),
    "contrastive loss": _rival("loss before training", -1, "2410.14578", needs="labels"),
}
"""By name; sources are of arXiv where nothing else is said."""


def published_rules(readings: Mapping[str, Reading]) -> list[Rule]:
    """Return the two rules of L3Prune and that of TransformerRanker; none of them takes the embedding output."""

    def lowest(half: Literal[0, 1]) -> Predictor:
        """Take the lowest loss of a half of the blocks, as the code of L3Prune divides them."""

        def layers(losses: Array) -> NDArray[np.intp]:
            middle = max((losses.shape[-1] - 1) // 2, 1)
            first, stop = ((losses.shape[-1] - 1) // 2 + 1, None) if half else (1, middle + 1)
            chosen: NDArray[np.intp] = first + losses[..., first:stop].argmin(axis=-1)
            return chosen

        return ReadingPredictor(name="contrastive loss", layers=layers)

    ranked = ReadingPredictor(name="LogME", layers=lambda scores: 1 + np.round(scores[..., 1:], 4).argmax(axis=-1))
    rules = (
        ("L3Prune small", "contrastive loss", lowest(0), "Thennal, Fischer and Biemann 2025 (2410.14578)"),
        ("L3Prune large", "contrastive loss", lowest(1), "Thennal, Fischer and Biemann 2025 (2410.14578)"),
        ("TransformerRanker bestlayer", "LogME", ranked, "Garbaciauskas et al. 2024 (Findings of ACL, 757)"),
    )
    return [
        Rule(name=name, curves=(curve,), make=lambda predict=predict: predict, labelled=True, source=source)
        for name, curve, predict, source in rules
        if curve in readings
    ]
