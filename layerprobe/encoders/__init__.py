"""Hugging Face encoders: resolve, load, inspect and truncate them.

Knows models and tokenizers; stores the checks of a model's first use; knows no tasks and no similarity.
"""
