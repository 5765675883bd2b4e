"""STS tasks and texts from files and the Hub. Knows data files, not models."""

from layerprobe.tasks.loading import load_task, load_texts

__all__ = ["load_task", "load_texts"]
