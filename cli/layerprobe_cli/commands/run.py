"""layerprobe lab run."""

import dataclasses
from pathlib import Path
from typing import Annotated

from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall


def run(
    call: PageCall,
    file: Annotated[Path, {"argument": True, "metavar": "RECIPE.toml"}],
    out: Path | None = None,
    dry_run: bool = False,
    workers: Annotated[int | None, {"min": 1}] = None,
    ray: o.Ray = None,
    retry_failed: bool = False,
    level: o.Level = LEVEL,
    device: o.Device = "auto",
    cache_dir: o.CacheDir = None,
) -> Done:
    r"""Pretrain, adapt, fine-tune and average models by a recipe.

    The file names \[\[models]], or pretrains small ones in its first \[\[step]]; further steps adapt = "texts.txt" and
    tune = "words", one after the other; \[\[tasks]], on which every model is fine-tuned at every layer with every seed,
    under each \[budget.NAME]; and last steps that average = "layers". Keys are options of `layerprobe lab pretrain`,
    `lab adapt` and `finetune`, with underscores. It says what each objective changes, what the first steps add, how far
    layers moved by CKA, and what averages gain. Models whose objective is known become a zoo for `layerprobe lab
    bench`. What is done is not done again.

    Example:  [bold]layerprobe lab run words-then-stsb.toml --report words.html[/bold]

    Args:
        file: The recipe; research/lab.md describes its keys.
        out: The folder of pretrained models and of zoo.json. By default the file's name in this folder.
        dry_run: Print the steps and what is stored of them.
        workers: Processes that share the work. By default 1; with --ray one per GPU, else one per node.
        retry_failed: Make runs again that are marked as failed.
    """
    from layerprobe.lab.recipe import load_recipe
    from layerprobe.lab.run import plan_recipe, run_recipe

    settings = load_recipe(file)
    options = dataclasses.replace(settings.options, cache_dir=cache_dir)
    if "device" in call.given("device"):
        options = dataclasses.replace(options, device=device)
    settings = dataclasses.replace(settings, options=options)
    if dry_run:
        call.stop_at(plan_recipe(settings, out))
    return Done(result=run_recipe(settings, out, workers=workers, ray=ray, retry_failed=retry_failed))
