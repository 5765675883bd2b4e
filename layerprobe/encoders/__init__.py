"""Hugging Face encoders: resolved, loaded, understood, truncated.

Knows models and tokenizers; keeps in the store what is found when one is first used; knows no tasks and no similarity.
"""
