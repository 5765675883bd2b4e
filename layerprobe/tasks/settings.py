"""Where a task is and how it is read -> the task. Knows which loader takes the settings."""

from dataclasses import fields

from layerprobe.tasks.formats import Format
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task, TaskSettings


def load_settings(settings: TaskSettings) -> Task:
    """Load a task as its settings say."""
    if settings.merge:
        kind = next(kind for name, kind in KINDS.usable().items() if kind.merged and settings.kind in (None, name))
        merged: Task = kind.load("merged")(
            settings.source, seed=settings.split_seed, format=settings.format, skip_empty=settings.skip_empty
        )
        return merged
    read = {"source", "merge", "split_seed", *(field.name for field in fields(Format))}
    values = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in read}
    return load_task(settings.source, seed=settings.split_seed, format=settings.format, **values)
