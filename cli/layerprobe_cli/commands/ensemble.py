"""layerprobe lab ensemble."""

from pathlib import Path
from typing import Annotated

from layerprobe.checks import LEVEL, as_layers
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall

OF = "layerprobe.lab.ensembles:ensemble"


def ensemble(
    call: PageCall,
    runs: Annotated[list[Path], {"show_default": False, "argument": True}],
    source: o.Source,
    layers: Annotated[str, {"callback": o.given_layers}] = "",
    level: o.Level = LEVEL,
    profile: bool = False,
    device: o.Device = "auto",
) -> Done:
    """Average fine-tuned runs, and say what that gains.

    What is averaged are the outputs. The weights are chosen on the validation split; the gain, on test, is over the
    best single run by validation. The task is the one that the runs noted; where it was read with options, give it with
    the same ones. Layers of one scan share their blocks, so that two of them cost no more than the deeper one.

    Example:  [bold]layerprobe lab ensemble ~/.cache/layerprobe/runs/4f0c.../falling-seed-* --layers 5,6[/bold]

    Args:
        runs: Directories of runs that `layerprobe finetune` made, or the folder they lie in.
        layers: Average these alone, such as 3,5. By default the best two of a scan; all that were fine-tuned.
    """
    chosen = as_layers(layers) if layers not in ("", "all") else None
    task = o.load(source) if source else None

    from layerprobe.encoders.model import Model
    from layerprobe.lab.ensembles import ensemble as average

    return Done(result=average(runs, task, layers=chosen, profile=profile, options=Model(device=device)))
