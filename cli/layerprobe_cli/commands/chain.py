"""layerprobe lab chain."""

from pathlib import Path
from typing import Annotated, Any

from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall


def chain(
    call: PageCall,
    file: Annotated[Path, {"argument": True, "metavar": "CHAIN.toml"}],
    dry_run: bool = False,
    level: o.Level = LEVEL,
    device: o.Device = "auto",
    dtype: o.Precision = "float32",
    trust_remote_code: Annotated[bool, "Model"] = False,
    cache_dir: o.CacheDir = None,
) -> Done:
    r"""Train in steps, and say what the first ones add.

    Trainings are done one after the other, at each layer; finished steps are not repeated. The file names a model
    and \[\[step]] tables: adapt = "texts.txt" continues masked-language-model pretraining, finetune = "stsb" fine-tunes
    truncated models. A step has the options of `layerprobe lab adapt` or `finetune` as keys, with underscores. Beside
    model there are layers, seeds, reference, control, baseline and cka.

    Example:  [bold]layerprobe lab chain words-then-stsb.toml --report chain.html[/bold]

    Args:
        file: What to do, see below.
        dry_run: Print the steps and what is stored of them.
        trust_remote_code: Run model code that comes with a checkpoint.
    """
    from layerprobe.encoders.model import Model
    from layerprobe.lab.chains.run import plan_chain, run_chain
    from layerprobe.lab.chains.values import load_chain

    chain_settings = load_chain(file)
    options = Model(device=device, dtype=dtype, trust_remote_code=trust_remote_code, cache_dir=cache_dir)
    plan = plan_chain(chain_settings, options=options)
    if dry_run:
        call.stop_at(plan)
    done = run_chain(chain_settings, options=options)
    parts: list[Any] = [plan.table.title, "", plan.table, "", *done.sentences, "", done.table]
    return Done(result=done, parts=parts, notes=done.notes, warnings=done.warnings)
