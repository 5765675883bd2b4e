"""A package from outside with entries for DropBench; nothing of layerprobe knows it."""

from layerprobe.lab.dropbench.strategies import Answer, Trial


def middle(trial: Trial) -> int:
    """The layer in the middle: it looks at nothing."""
    return trial.n_layers // 2


def uphill(trial: Trial) -> Answer:
    """Two runs around the layer with the highest InfoNCE, of the first seed alone."""
    infonce = trial.reading("InfoNCE")
    start = max(range(trial.n_layers), key=infonce.__getitem__)
    near = [layer for layer in (start, start + 1) if layer < trial.n_layers]
    best = max(near, key=trial.tune)
    return Answer(layer=best, stated=tuple(near), sufficient=near[0])


def beyond(trial: Trial) -> int:
    """A layer that no model has."""
    return trial.n_layers


def broken(trial: Trial) -> int:
    """It divides by zero."""
    return 1 // 0


NUMBER = 3
