"""layerprobe demo."""

from pathlib import Path
from typing import Annotated

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe.results.table import named_values
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall, folder_to_write

AGAINST_LAST = 3
FILES = "rtd", "mlm", "pairs.csv", "texts.txt"


def demo(
    call: PageCall,
    out: Annotated[Path, {"flags": ("--out", "-o"), "callback": folder_to_write}] = Path("demo"),
    files: Annotated[Path | None, {"callback": folder_to_write}] = None,
    cache_dir: o.CacheDir = None,
) -> Done:
    """Find the layer of a small encoder to keep, offline.

    The encoders come with layerprobe. Both were pretrained on the same synthetic sentences: one by masked language
    modelling, one as an ELECTRA discriminator by replaced token detection. The demo compares them, finds the layer of
    the second one to keep, and writes the report.

    Example:  [bold]layerprobe demo --out demo[/bold]

    Args:
        out: Folder for report.html and finding.json.
        files: Only write the two encoders, sentence pairs and texts there, to try the other commands on.
    """
    from layerprobe.embedded import DEMO_PROTOCOL, DEMO_SIZES, embedded_model, embedded_task, write_embedded

    if files is not None:
        write_embedded(files)
        written = {name: str(files / name) for name in FILES}
        return Done(result=written, tables=[named_values(written, "Files")])
    out.mkdir(parents=True, exist_ok=True)
    model = embedded_model("rtd")
    finding = lp.find(
        Model(model, cache_dir=cache_dir),
        embedded_task(**DEMO_SIZES),
        reference=str(embedded_model("mlm")),
        against_last=AGAINST_LAST,
        final=True,
        protocol=DEMO_PROTOCOL,
        save_models=True,
        jobs=None,
    )
    lp.save(finding, out / "finding.json")
    call.report = call.report or out / "report.html"
    return Done(result=finding, warnings=finding.failures)
