"""Scores of every layer as files that mteb reads: a folder a model, revision and layer, a JSON a task.

`results/<model>/<revision>/experiments/layer_<L>/<task>.json`, with `model_meta.json` next to the tasks: each layer is
an experiment of the model, as `mteb.ResultCache.load_results(load_experiments="match_name")` reads them. Pooling,
prompt, norm and length are in the experiment's name where they are not the model's own: `layer_<L>__pooling_cls`.
Source: the layout of mteb 2 (Muennighoff et al. 2023; Enevoldsen et al. 2025).
"""

import json
import re
from pathlib import Path
from typing import Any

from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import DataError
from layerprobe.files.atomic import make_directory, write_whole
from layerprobe.files.serialisation import digest
from layerprobe.names import short_name
from layerprobe.scoring.values import Scores, TaskScores

UNDETERMINED = "und-Zyyy"
"""Language and script that nobody named, by ISO 639-3 and ISO 15924; mteb reads no score without a language."""


def write_mteb(result: Scores, folder: str | Path) -> list[Path]:
    """Write the scores of every layer and task below `folder`/results, and return the files of the tasks.

    Scores are fractions there, as mteb has them. A layer that is left out has no folder. A model without an
    organisation is one of `local`. Files that are there are written over, each whole or not at all.
    """
    if len(result.models) > 1:
        raise DataError(f"expected one model, got {len(result.models)}: write each by itself")
    (model,), written = result.models, []
    names = list(map(_task_name, result.tasks))
    if len(set(names)) < len(names):
        raise DataError(f"expected tasks of different names, got {', '.join(names)}: rename a file")
    name = _mteb_name(model)
    revision = Path(folder) / "results" / name.replace("/", "__") / _revision(model)
    for layer in (one.layer for one in result.layers):
        experiment = _experiment(result, layer)
        place = revision / "experiments" / "__".join(f"{key}_{value}" for key, value in sorted(experiment.items()))
        make_directory(place)
        _write(place / "model_meta.json", _model_meta(model, name, layer, experiment))
        for task in result.tasks:
            file = place / f"{_task_name(task)}.json"
            _write(file, _task_result(task, layer))
            written.append(file)
    return written


def _write(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _mteb_name(model: ModelDescription) -> str:
    """Return organisation/name, with nothing that a folder's name may not have."""
    whole = model.name.partition("@")[0]
    name = (
        whole if re.fullmatch(r"[\w.-]+/[\w.-]+", whole) and not Path(whole).exists() else f"local/{short_name(whole)}"
    )
    return re.sub(r"[^\w./-]+", "_", name)


def _revision(model: ModelDescription) -> str:
    """Return the commit, or the digest of a local folder, as the name of a folder on any system."""
    return re.sub(r"[^\w.-]+", "-", model.revision) or "no_revision_available"


def _experiment(result: Scores, layer: int) -> dict[str, Any]:
    """Return the layer and settings that identify an experiment of the model, as mteb's name needs them."""
    settings = dict(result.settings)
    for name in settings.keys() & {"prompt", "query_prompt", "document_prompt"}:
        start = re.sub(r"[^\w.-]+", "-", settings[name])[:16]
        settings[name] = f"{start}-{digest(settings[name])[:8]}".lstrip("-")
    return {"layer": layer, **settings}


def _task_name(task: TaskScores) -> str:
    return re.sub(r"[^\w.-]+", "_", re.sub(r"\.(csv|tsv|txt|jsonl|parquet)$", "", short_name(task.task)))


def _task_result(task: TaskScores, layer: int) -> dict[str, Any]:
    metrics = {name: scores[layer] / 100 for name, scores in task.scores.metrics.items()}
    scored = {
        **metrics,
        "main_score": metrics[task.scores.primary],
        "hf_subset": "default",
        "languages": [UNDETERMINED],
    }
    return {
        "dataset_revision": task.task_digest,
        "task_name": _task_name(task),
        "mteb_version": None,
        "scores": {task.scores.split: [scored]},
        "evaluation_time": None,
        "kg_co2_emissions": None,
    }


def _model_meta(model: ModelDescription, name: str, layer: int, experiment: dict[str, Any]) -> dict[str, Any]:
    unknown = (
        *("loader", "release_date", "languages", "memory_usage_mb", "max_tokens", "license", "open_weights"),
        *("public_training_code", "public_training_data", "use_instructions", "training_datasets"),
    )
    return {
        **dict.fromkeys(unknown),
        "name": name,
        "revision": _revision(model),
        "n_parameters": model.parameters[layer],
        "embed_dim": model.hidden_size,
        "framework": ["PyTorch", "Transformers"],
        "similarity_fn_name": "cosine",
        "experiment_kwargs": experiment,
    }
