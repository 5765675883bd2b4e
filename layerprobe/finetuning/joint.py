"""One run with a loss at every layer: the curve of all layers for the price of one, and a model to cut anywhere.

Knows an encoder and examples; knows no files.
Source: deep supervision (Lee et al., AISTATS 2015), one-shot search (Bender et al., ICML 2018), the sandwich rule (Yu
and Huang, ICCV 2019); for embeddings, Li et al. 2024 (2402.14776) and `AdaptiveLayerLoss` of sentence-transformers.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders.encoder import Encoder, EveryLayer
from layerprobe.finetuning.outputs import RunOutputs
from layerprobe.finetuning.tmft import train_layers
from layerprobe.finetuning.values import FailedLayer, JointEpoch, JointRun, Protocol, Weighting
from layerprobe.tasks.values import Task

Array = NDArray[np.float64]


def fine_tune_jointly(
    encoder: Encoder,
    task: Task,
    *,
    protocol: Protocol | None = None,
    seed: int = 0,
    weighting: Weighting = "falling",
    batch_tokens: int | None = None,
    save_to: Path | None = None,
    unfinished: Path | None = None,
) -> tuple[JointRun, RunOutputs]:
    """Fine-tune the encoder with the task's loss at every layer of the same forward pass.

    Everything but the loss is as in `fine_tune`: protocol, groups of examples, precision, memory. The loss of a step
    is the sum of the layers' losses, each with its own head where the kind of task has one, times their weights, see
    `layer_weights`. The best epoch, one for all layers, has the highest primary metric on the validation split in the
    mean over layers; its model is what `save_to` gets, and it can be truncated at any layer.

    A layer whose loss or embeddings are not finite is left out from there on and listed; the others go on.

    Returns:
        The run with scores by layer, and what its best epoch outputs for every validation and test example.
    """
    protocol = protocol or Protocol()
    n_layers = encoder.n_layers
    trained = train_layers(
        encoder,
        lambda: EveryLayer(encoder),
        task,
        protocol,
        weights=layer_weights(weighting, n_layers, seed=seed),
        seed=seed,
        last_layer=n_layers - 1,
        batch_tokens=batch_tokens,
        what=f"joint run seed {seed}",
        save_to=save_to,
        unfinished=unfinished,
    )
    run = JointRun(
        seed=seed,
        weighting=weighting,
        protocol=protocol,
        parameters=encoder.description.parameters,
        primary=task.primary,
        best_epoch=trained.best_epoch,
        validation=tuple(None if evaluation is None else evaluation.metrics for evaluation in trained.validation),
        test=tuple(None if evaluation is None else evaluation.metrics for evaluation in trained.test),
        epochs=tuple(
            JointEpoch(
                epoch=epoch,
                train_loss=tuple(loss if np.isfinite(loss) else None for loss in losses),
                validation=tuple(
                    None if evaluation is None else evaluation.metrics[task.primary] for evaluation in scores
                ),
            )
            for epoch, (losses, scores) in enumerate(trained.epochs, 1)
        ),
        seconds=trained.seconds,
        peak_memory=trained.peak_memory,
        thresholds=tuple(None if evaluation is None else evaluation.threshold for evaluation in trained.validation),
        failures=tuple(
            FailedLayer(layer=layer, message=str(error)) for layer, error in sorted(trained.failures.items())
        ),
    )
    return run, trained.outputs


def layer_weights(weighting: Weighting, n_layers: int, *, seed: int) -> Callable[[int], Array]:
    """Return how much the loss at each layer counts at a step: (n_layers,) for a step from 0.

    falling: from 1 at layer 0 in equal parts down to 1 / n_layers at the last; equal: 1 everywhere; random: 1 at one
    layer that is drawn for the step, 0 elsewhere; sandwich: 1 at the first, the last and a random layer.

    Examples:
        >>> layer_weights("falling", 4, seed=0)(0).tolist()
        [1.0, 0.75, 0.5, 0.25]
    """
    if weighting in ("falling", "equal"):
        fixed = np.linspace(1, 1 / n_layers, n_layers) if weighting == "falling" else np.ones(n_layers)
        return lambda step: fixed

    def drawn(step: int) -> Array:
        weights = np.zeros(n_layers)
        weights[np.random.default_rng([seed, step]).integers(n_layers)] = 1
        if weighting == "sandwich":
            weights[[0, -1]] = 1
        return weights

    return drawn
