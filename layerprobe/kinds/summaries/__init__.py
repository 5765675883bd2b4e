"""Extractive summaries: which sentences of a document to keep."""
