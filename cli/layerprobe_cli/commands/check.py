"""layerprobe check."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from layerprobe.encoders.model import Model
from layerprobe_cli import options as o
from layerprobe_cli.shell import Call, Done


def check(call: Call, model: Annotated[Model, o.model_group(f"{o.LOADING} norm")], source: o.TextSource) -> Done:
    """Check that layerprobe can trust a model.

    It checks layers, the norm, padding, truncation and finite numbers. With a task or texts, it also counts unknown
    characters, truncated texts, duplicates, and texts of other splits that are also in train. It compares every
    installed backend with torch at every layer, and times it on these texts. The exit code is 1 if a check fails.

    Example:  [bold]layerprobe check answerdotai/ModernBERT-base[/bold]
    """
    data: Any = source.load() if source else None
    from layerprobe.encoders.identity import resolve
    from layerprobe.extraction.check import check_model, data_quality
    from layerprobe.files.images import readable_as

    (checkpoint,) = o.resolved(model)
    if data is None:
        diagnosis = check_model(checkpoint)
    else:
        texts = source.items(data).texts
        checkpoint = resolve(checkpoint, items=readable_as(texts))
        quality = data_quality(checkpoint, data if source.task else texts, split=source.split)
        diagnosis = dataclasses.replace(check_model(checkpoint, texts), data=quality)
        call.notes(data.notes, (*data.warnings, *quality.warnings))
    return Done(result=diagnosis, details=True, code=int(not diagnosis.healthy))
