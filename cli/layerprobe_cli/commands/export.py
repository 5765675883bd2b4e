"""layerprobe export."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe_cli import options as o
from layerprobe_cli.shell import Call, Done, new_folder

OF = "layerprobe.export.run:export_model"
Exported = Annotated[
    Model,
    o.model_group(
        o.EXPORTED,
        callback=None,
        help="Hub id, id@revision, a local folder, or a directory of `layerprobe finetune --save-models`, whose "
        "options are then those of the run.",
    ),
]


def export(
    call: Call,
    model: Exported,
    out: Annotated[Path, {"argument": True, "callback": new_folder}],
    layer: int | None = None,
    finding: Path | None = None,
    int8: Annotated[list[str] | None, {"metavar": "[onnx|openvino]"}] = None,
    overwrite: bool = False,
) -> Done:
    """Write a truncated model as a folder that others load.

    transformers and sentence-transformers load it. Before the folder is renamed to its final name, the model is loaded
    and compared with the embeddings of that layer.

    Example:  [bold]layerprobe export google/electra-base-discriminator electra-9 --layer 9[/bold]

    Args:
        out: The folder to write.
        layer: Number of blocks to keep: 0 for the embeddings alone, -1 for all. By default that of a fine-tuning run.
        finding: Output of `layerprobe find --json`, as evidence for the model card.
        int8: Also write the model in 8 bits for this backend. Repeat for both.
    """
    evidence = None if finding is None else o.read_finding(finding)
    result = lp.export_model(model, out, layer=layer, finding=evidence, int8=int8 or (), overwrite=overwrite)
    upload = f"hf upload USER/NAME {shlex.quote(result.path)} . --private"
    return Done(result=result, files={"To upload it": upload})
