"""Embeddings and results on disk. Knows files, not models and not maths."""

from typing import Literal

StoreDtype = Literal["float32", "float16"]
"""Precision of stored embeddings."""
