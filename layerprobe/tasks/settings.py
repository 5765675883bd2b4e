"""Where a task is and how it is read -> the task. Knows which loader takes the settings."""

from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task, TaskSettings


def load_settings(settings: TaskSettings) -> Task:
    """Load a task as its settings say.

    Raises:
        TaskError: If it is not what it should be.
    """
    if settings.merge:
        kind = next(kind for name, kind in KINDS.usable().items() if kind.merged and settings.kind in (None, name))
        merged: Task = kind.load_merged()(
            settings.source, seed=settings.split_seed, format=settings.format, skip_empty=settings.skip_empty
        )
        return merged
    return load_task(
        settings.source,
        columns=settings.columns,
        kind=settings.kind,
        score_range=settings.score_range,
        validation=settings.validation,
        test=settings.test,
        seed=settings.split_seed,
        format=settings.format,
        skip_empty=settings.skip_empty,
        skip_broken=settings.skip_broken,
        query_prompt=settings.query_prompt,
        document_prompt=settings.document_prompt,
    )
