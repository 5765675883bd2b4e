"""Queries, documents, and how well each layer finds the one from the other."""
