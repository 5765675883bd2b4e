"""layerprobe demo."""

from pathlib import Path
from typing import Annotated

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe.results.table import named_values
from layerprobe_cli import options as o
from layerprobe_cli.commands.run import study_done
from layerprobe_cli.places import folder_to_write
from layerprobe_cli.shell import Call, Done, PlotlyFrom

FULL_SEEDS = 3
FILES = "rtd", "mlm", "pairs.csv", "texts.txt"


def demo(
    call: Call,
    out: o.StudyFolder = Path("demo"),
    full: bool = False,
    files: Annotated[Path | None, {"callback": folder_to_write}] = None,
    cache_dir: o.CacheDir = None,
    plotly: PlotlyFrom = "embedded",
) -> Done:
    """Run the pipeline offline, on two small encoders.

    The encoders come with layerprobe. Both were pretrained on the same synthetic sentences: one by masked language
    modelling, one as an ELECTRA discriminator by replaced token detection. The demo compares them, finds the layer of
    the second one to keep, and writes the report.

    Example:  [bold]layerprobe demo --out demo[/bold]

    Args:
        full: Fine-tune both models at every layer, with three seeds; takes six minutes on two cores.
        files: Only write the two encoders, sentence pairs and texts there, to try the other commands on.
    """
    from layerprobe.embedded.pair import (
        DEMO_PROTOCOL,
        DEMO_SIZES,
        N_BLOCKS,
        embedded_model,
        embedded_task,
        write_embedded,
    )
    from layerprobe.search.values import SEEDS
    from layerprobe.study.commands import next_commands

    if files is not None:
        write_embedded(files)
        written = {name: str(files / name) for name in FILES}
        return Done(result=written, parts=[named_values(written, "Files")])
    out.mkdir(parents=True, exist_ok=True)
    model, reference = embedded_model("rtd"), embedded_model("mlm")
    every_layer = tuple(range(N_BLOCKS + 1))
    study = lp.run(
        Model(model, cache_dir=cache_dir),
        reference=str(reference),
        task=embedded_task(**DEMO_SIZES),
        layers=every_layer if full else (),
        reference_layers=every_layer if full else (),
        seeds=FULL_SEEDS if full else SEEDS,
        jobs=None,
        protocol=DEMO_PROTOCOL,
        save_models=True,
        command=f"layerprobe demo{' --full' if full else ''}",
    )
    return study_done(study, out, plotly, next_commands(study))
