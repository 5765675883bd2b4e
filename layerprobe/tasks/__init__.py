"""Tasks and texts from files and the Hub. Knows data files, not models."""

from layerprobe.tasks.loading import load_task, load_texts
from layerprobe.tasks.retrieval import load_retrieval
from layerprobe.tasks.settings import load_settings
from layerprobe.tasks.splitting import drawn_from
from layerprobe.tasks.words import load_word_similarity

__all__ = ["drawn_from", "load_retrieval", "load_settings", "load_task", "load_texts", "load_word_similarity"]
