"""The commands that come next, with the options that this one was given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.files.atomic import from_home
from layerprobe.names import short_name
from layerprobe_cli.options import EMBEDDING, TASK
from layerprobe_cli.shell import Call

if TYPE_CHECKING:
    from layerprobe.study.values import Finding

EXPORTED = "pooling max_length prompt random_init end_token blocks"
"""Options that say what a model is, as `layerprobe export` takes them."""
NOT_EXPORTED = "trust_remote_code query_prompt document_prompt"
"""Those that it lacks, without which it would write another model."""


def find_command(call: Call, model: str, task: str) -> str:
    """Return the `layerprobe find` of a model on the task of this command."""
    names = call.given(TASK, EMBEDDING) - _of_first(call, model) - {"source"}
    return call.further(["find", model, "-t", task], names)


def export_found(finding: Finding) -> str:
    """Return the `layerprobe export` of the model to keep, whose weights are there."""
    path, home = Path(finding.weights.directory), from_home("~")  # which stays so for a user without a home
    below = path.is_relative_to(home) and path != home
    source = f"~/{shlex.quote(path.relative_to(home).as_posix())}" if below else shlex.quote(str(path))
    name = re.sub(r"[^A-Za-z0-9.]+", "-", short_name(finding.model.name)).strip("-.")[:60] or "model"
    layer = f" --layer {finding.best_layer}" if finding.weights.scan else ""
    return f"layerprobe export {source} {name}-{finding.best_layer}{layer}"


def export_layer(call: Call, model: str, layer: int, folder: str) -> list[str]:
    """Return the `layerprobe export` of a layer of this command's model; none where it would be of another one."""
    if call.given(NOT_EXPORTED) or call.context.params.get("norm") == "raw":
        return []
    options_used = call.given(EXPORTED) - _of_first(call, model)
    return [call.further(["export", model, folder, "--layer", str(layer)], options_used)]


def _of_first(call: Call, model: str) -> set[str]:
    """Return which options are not about a model: those of the first one for a further one."""
    return set() if model == call.context.params["name"] else {"display_name", "blocks"}
