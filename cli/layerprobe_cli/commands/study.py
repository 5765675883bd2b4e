"""layerprobe lab study."""

from pathlib import Path
from typing import Annotated

from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.shell import Call, Done, PlotlyFrom


def study(
    call: Call,
    file: Annotated[Path, {"argument": True, "metavar": "STUDY.toml"}],
    out: Path | None = None,
    dry_run: bool = False,
    workers: Annotated[int | None, {"min": 1}] = None,
    ray: o.Ray = None,
    level: o.Level = LEVEL,
    device: o.Device = "auto",
    dtype: o.Precision = "float32",
    cache_dir: o.CacheDir = None,
    plotly: PlotlyFrom = "embedded",
) -> Done:
    r"""Find out what a pretraining objective does to each layer.

    It pretrains encoders that differ in their objective alone. The file names objectives, seeds and \[sizes];
    \[pretraining] has the options of `layerprobe lab pretrain`, \[task] the source to fine-tune on, and each
    \[budget.NAME] the options of `layerprobe finetune`, all with underscores. Each model is compared by CKA with the
    masked language models of the same and of another seed, and fine-tuned at every layer. The folder gets the models,
    zoo.json, which `layerprobe lab bench` reads, lab.json and lab.html. What is done is not done again.

    Example:  [bold]layerprobe lab study objectives.toml --workers 2[/bold]

    Args:
        file: What to do, see below.
        out: The folder of the study. By default the file's name in this folder.
        dry_run: Print the models and what is stored of them.
        workers: Processes that share the work. By default 1; with --ray one per GPU, else one per node.
    """
    from layerprobe.encoders.model import Model
    from layerprobe.lab.studies.run import plan_lab, run_lab
    from layerprobe.lab.studies.values import load_lab

    study_settings = load_lab(file)
    folder = out or Path(study_settings.name)
    options = Model(device=device, dtype=dtype, cache_dir=cache_dir)
    if dry_run:
        call.stop_at(plan_lab(study_settings, folder, options=options))
    done = run_lab(study_settings, folder, workers=workers, ray=ray, options=options)

    from layerprobe.results.declared import declared_page
    from layerprobe.results.page import write_page

    page = write_page(declared_page(done), folder / "lab.html", plotly=plotly)
    return Done(result=done, parts=(*done.sentences, "", done.table, ""), files={"Folder": folder, "Report": page})
