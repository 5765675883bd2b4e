"""layerprobe export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe_cli import options as o
from layerprobe_cli.following import EXPORTED
from layerprobe_cli.places import new_folder
from layerprobe_cli.shell import Call, Done

OF = "layerprobe.export.run:export_model"
HUB = "Hugging Face Hub"
Exported = Annotated[
    Model,
    o.model_group(
        EXPORTED,
        callback=None,
        help="Hub id, id@revision, a local folder, or a directory of `layerprobe finetune --save-models`, whose "
        "options are then those of the run.",
    ),
]


def _in_depth(context: typer.Context, layer: int | None) -> int | None:
    o.check_depth(context.params.get("name"), layer or 0)
    return layer


def export(
    call: Call,
    model: Exported,
    out: Annotated[Path, {"argument": True, "callback": new_folder}],
    layer: Annotated[int | None, {"callback": _in_depth, "min": 0}] = None,
    study: Path | None = None,
    int8: Annotated[list[str] | None, {"metavar": "[onnx|openvino]"}] = None,
    overwrite: bool = False,
    push_to_hub: Annotated[str | None, HUB, {"metavar": "USER/NAME"}] = None,
    public: Annotated[bool, HUB] = False,
    revision: Annotated[str | None, HUB] = None,
    commit_message: Annotated[str | None, HUB] = None,
) -> Done:
    """Write a truncated model as a folder that others load.

    transformers and sentence-transformers load it. It is loaded back and compared with the layer's own embeddings
    before it gets its name. With --push-to-hub it is uploaded, by the token of HF_TOKEN or of `hf auth login`.

    Example:  [bold]layerprobe export google/electra-base-discriminator electra-9 --layer 9[/bold]

    Args:
        out: The folder to write.
        layer: Blocks kept; 0 for the embeddings alone. By default that of a fine-tuning run.
        study: The study.json of `layerprobe run`: evidence for the model card.
        int8: Also write it in 8 bits for this backend; again: both.
        push_to_hub: Upload the folder to this repository, too; an export at OUT as it is.
        public: Everybody may see the repository; by default it is made private.
        revision: The branch, made if needed. By default main.
        commit_message: Of the commit. By default what was exported.
    """
    from layerprobe.study.values import read_study

    if push_to_hub is None and (public or revision is not None or commit_message is not None):
        raise typer.BadParameter("expected --push-to-hub USER/NAME with --public, --revision and --commit-message")
    evidence = None if study is None else read_study(study)

    from layerprobe.export.hub import Push

    push = push_to_hub and Push(repo=push_to_hub, public=public, revision=revision, message=commit_message)
    result = lp.export_model(
        model, out, layer=layer, study=evidence, int8=int8 or (), overwrite=overwrite, push_to_hub=push or None
    )
    return Done(result=result)
