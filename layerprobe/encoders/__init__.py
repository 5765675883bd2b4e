"""Hugging Face encoders: resolved, loaded, understood, truncated.

Knows models and tokenizers; knows no tasks, no similarity and no store.
"""
