"""Embeddings and results on disk. Knows files, not models and not maths."""
