"""Extractive summaries: choosing sentences of a document."""
