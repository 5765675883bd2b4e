"""What to do next, as command lines: fine-tune and keep the weights, export, serve. Knows studies, runs nothing."""

import re
import shlex
from pathlib import Path

from layerprobe.encoders.model import ModelDescription
from layerprobe.files.atomic import from_home
from layerprobe.names import short_name
from layerprobe.study.values import Finding, Provenance, Study
from layerprobe.tasks.kind import KINDS


def next_commands(study: Study) -> tuple[str, ...]:
    """Return the commands that write the model to keep as a folder; without fine-tuning, the one that fine-tunes."""
    return (run_command(study),) if study.finding is None else _export_commands(study, study.finding)


def _export_commands(study: Study, finding: Finding, layer: int | None = None) -> tuple[str, ...]:
    finetune = study.provenance.finetune_command or _finetune_command(study.comparison.model, study.provenance)
    return export_commands(finding, study.comparison.model.name, finetune, layer)


def export_commands(finding: Finding, model: str, finetune: str, layer: int | None = None) -> tuple[str, ...]:
    """Return the commands that write a layer, by default the one found, as a folder; `finetune` lacks layers, seeds."""
    layer = finding.best_layer if layer is None else layer
    weights = finding.weights if layer == finding.best_layer or (finding.weights and finding.weights.scan) else None
    out = folder_name(model, layer)
    if weights is not None and weights.kept:
        return (f"layerprobe export {_path(weights.directory)} {out}{f' --layer {layer}' if weights.scan else ''}",)
    directory = "DIRECTORY" if weights is None else _path(weights.directory)
    return f"{finetune} --layers {layer} --seeds 1 --save-models", f"layerprobe export {directory} {out}"


def run_command(study: Study) -> str:
    """Return the command that fine-tunes and finds the layer, of a study that stopped at the prediction."""
    words = shlex.split(study.provenance.command) if study.provenance.command.startswith("layerprobe run ") else []
    if words:
        return shlex.join(word for word in words if word != "--no-fine-tuning")
    comparisons = () if study.comparison.alone else (study.comparison, *study.further_comparisons)
    references = [word for comparison in comparisons for word in ("-r", _source(comparison.reference))]
    seeds = _random_init(study.comparison.model)
    return shlex.join(
        ["layerprobe", "run", _source(study.comparison.model), *references, "-t", study.provenance.task, *seeds]
    )


def serve_commands(study: Study) -> dict[str, str]:
    """Return how others serve the folder that `next_commands` writes, by their names; none of images, see its card."""
    if KINDS[study.provenance.task_kind].unit == "image":
        return {}
    folder = folder_name(study.comparison.model.name, study.kept_layer)
    prompt = study.provenance.settings.get("prompt")
    python = f'SentenceTransformer("{folder}").encode(["A sentence."])'
    commands = {"sentence-transformers": f"from sentence_transformers import SentenceTransformer\n{python}"}
    if study.comparison.pooling != "max":
        option = "" if prompt is None else f" --default-prompt {shlex.quote(prompt)}"
        commands["text-embeddings-inference"] = f"text-embeddings-router --model-id ./{folder} --port 8080{option}"
        commands["vLLM"] = f"vllm serve ./{folder} --runner pooling"
    return commands


def folder_name(model: str, layer: int) -> str:
    """Return a name for the folder of a model truncated at a layer: letters, digits, dots and hyphens.

    Examples:
        >>> folder_name("google/electra-base-discriminator", 9)
        'electra-base-discriminator-9'
    """
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', short_name(model)).strip('-.')[:60] or 'model'}-{layer}"


def _finetune_command(model: ModelDescription, provenance: Provenance) -> str:
    return shlex.join(["layerprobe", "finetune", _source(model), "-t", provenance.task, *_random_init(model)])


def _random_init(model: ModelDescription) -> list[str]:
    return [] if model.random_init is None else ["--random-init", str(model.random_init)]


def _source(model: ModelDescription) -> str:
    return model.source or model.name.removesuffix(f" (random init {model.random_init})")


def _path(directory: str) -> str:
    """Return a path for a shell, what lies in the user's home from there.

    Examples:
        >>> _path("/models/my model")
        "'/models/my model'"
    """
    path, home = Path(directory), from_home("~")  # which stays so for a user without a home
    if path.is_relative_to(home) and path != home:
        return f"~/{shlex.quote(path.relative_to(home).as_posix())}"
    return shlex.quote(directory)
