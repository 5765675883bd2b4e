"""A sweep as a TOML file. Knows keys; runs nothing."""

from dataclasses import replace
from pathlib import Path

from layerprobe.encoders.model import ModelSpec, Options
from layerprobe.files.toml import LAYERS, SEEDS, Keys, field_values, path_from, read_toml, to_toml
from layerprobe.finetuning.values import Protocol, with_rate
from layerprobe.sweeps.values import OPTIONS, Sweep, SweepModel
from layerprobe.tasks.toml import model_reader, source_from, taken_task
from layerprobe.tasks.values import TaskSettings


def load_sweep(path: str | Path) -> Sweep:
    """Return the sweep that a TOML file describes.

        layers = [6, 12]                 # or "all"
        seeds = 3                        # from 0 on, or a list of them

        [[models]]
        id = "google/electra-base-discriminator"
        layers = [0, 12]                 # or "all", instead of those above; random_init = 0 for random weights
        name = "ELECTRA"                 # what to call it, by default its id
        end_token = false                # whether its end token is appended, by default as for one model
        blocks = [1, 5, 6]               # which blocks are kept, by default all

        [[tasks]]
        source = "stsb"                  # also columns, kind, merge, score_range, validation, test, split_seed

        [protocol]
        epochs = 3                       # and the other fields of `Protocol`

        [options]
        dtype = "bfloat16"               # pooling, prompt, device, attn, batch_tokens, trust_remote_code

    Only models and tasks must be there. With `lora`, learning_rate is 2e-4 by default. Files and folders are relative
    to the TOML file.

    Raises:
        DataError: If the file cannot be read, or a key or a value is not what it should be.
    """
    keys = read_toml(path, "the sweep")
    tables = keys.tables("models")
    models = tuple(map(_model, tables))
    layers = keys.take("layers", LAYERS, default=None)
    if any(table.data.get("layers") == "all" for table in tables):
        # a model without layers has those of the sweep: where one is to have all, the others name theirs
        named = ("layers" in table.data for table in tables)
        models = tuple(
            m if has_layers else replace(m, layers=layers) for m, has_layers in zip(models, named, strict=True)
        )
        layers = None
    options = keys.table("options", default={}).whole(Options, only=OPTIONS)
    protocol = keys.table("protocol", default={})
    if options.pooling is None and "pooling" in protocol.data:
        # a protocol that says the mean means it, though one that says nothing has the mean
        options = replace(options, pooling=protocol.whole(Protocol).pooling)
    if options.pooling is not None:
        protocol.data = {"pooling": options.pooling, **protocol.data}
    protocol.data = with_rate(protocol.data)
    values = {
        "models": models,
        "tasks": tuple(map(_task, keys.tables("tasks"))),
        "layers": layers,
        "protocol": protocol.whole(Protocol),
        "options": options,
    }
    return keys.whole(Sweep, values, readers={"seeds": SEEDS})


def _model(keys: Keys) -> SweepModel:
    fields = {"name": keys.take("id", model_reader(keys)), "display_name": keys.take("name", str, default=None)}
    spec = keys.fields(ModelSpec, fields, only=("random_init", "end_token", "blocks"))
    return keys.whole(SweepModel, {"model": spec}, readers={"layers": LAYERS})


def _task(keys: Keys) -> TaskSettings:
    task = taken_task(keys)
    keys.done()
    return task


def sweep_toml(sweep: Sweep) -> str:
    """Return the TOML that `load_sweep` reads as `sweep`, without what is left at its default.

    The folder of the runs is not in it. Paths are absolute, so that the file may lie anywhere.

    Examples:
        >>> model = SweepModel(model=ModelSpec("bert"))
        >>> print(sweep_toml(Sweep(models=(model,), tasks=(TaskSettings(source="stsb"),), seeds=(0,))))
        seeds = [0]
        <BLANKLINE>
        [[models]]
        id = "bert"
        <BLANKLINE>
        [[tasks]]
        source = "stsb"
        <BLANKLINE>
    """
    options = field_values(sweep.options, changed=True)
    protocol = field_values(sweep.protocol, changed=True)
    if sweep.protocol.lora:  # without a rate it would have that of adapters
        protocol["learning_rate"] = sweep.protocol.learning_rate
    return to_toml(
        ("", {"layers": sweep.layers, "seeds": sweep.seeds}),
        *(("[[models]]", _model_values(model)) for model in sweep.models),
        *(("[[tasks]]", _task_values(task)) for task in sweep.tasks),
        ("[protocol]", protocol),
        ("[options]", {name: value for name, value in options.items() if name in OPTIONS}),
    )


def _model_values(model: SweepModel) -> dict[str, object]:
    name = source_from(Path.cwd(), model.model.full_name)
    spec = model.model
    fields = {key: getattr(spec, key) for key in ("random_init", "end_token", "blocks")}
    return {"id": name, "name": spec.display_name, **fields, "layers": model.layers}


def _task_values(task: TaskSettings) -> dict[str, object]:
    values = field_values(task, changed=True)
    paths: dict[str, object] = {
        name: path_from(Path.cwd(), values[name]) for name in ("validation", "test") if name in values
    }
    return {**values, **paths, "source": source_from(Path.cwd(), task.source)}
