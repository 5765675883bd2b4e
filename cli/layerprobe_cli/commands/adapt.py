"""layerprobe lab adapt."""

from pathlib import Path
from typing import Annotated

from layerprobe.lab.pretraining.values import AdaptationProtocol
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group
from layerprobe_cli.shell import Call, Done, new_folder

TRAINING = (
    "epochs max_steps learning_rate batch_size accumulation weight_decay warmup max_grad_norm max_length masking_rate "
    "random_share kept_share validation_share"
)


def adapt(
    call: Call,
    model: o.Loading,
    protocol: Annotated[AdaptationProtocol, Group(AdaptationProtocol, "Training", TRAINING)],
    texts: list[Path],
    out: Annotated[Path, {"flags": ("--out", "-o"), "callback": new_folder}],
    column: o.TextColumn = None,
    seed: Annotated[int, "Training", {"min": 0}] = 0,
    evaluate_every: Annotated[int | None, "Training", {"min": 1}] = None,
    checkpoint_every: Annotated[int, "Training", {"min": 1}] = 50,
    overwrite: bool = False,
) -> Done:
    """Continue masked-language-model pretraining on texts.

    This is domain-adaptive pretraining. It writes an ordinary checkpoint, which any other command takes as the model.

    Example:  [bold]layerprobe lab adapt google/electra-base-discriminator --texts sentences.txt -o adapted[/bold]

    Args:
        texts: Texts: one per line in a .txt or .txt.gz file, or a table. Repeat for further files.
        out: The folder to write.
        seed: Seed of held-out texts, order, masking, dropout and fresh weights.
        evaluate_every: Steps between evaluations. By default one epoch.
        checkpoint_every: Steps between checkpoints; an interrupted run continues from the last one.
        overwrite: Replace an adapted model at OUT.
    """
    from layerprobe.lab.pretraining.run import adapt as adapt_model
    from layerprobe.tasks.loading import load_corpus

    corpus, (checkpoint,) = load_corpus(texts, columns=column), o.resolved(model)
    adaptation = adapt_model(
        checkpoint,
        corpus,
        out,
        protocol=protocol,
        seed=seed,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
    )
    return Done(result=adaptation, files={"Folder": out})
