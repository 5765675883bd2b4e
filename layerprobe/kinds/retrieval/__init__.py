"""Retrieval: queries and documents, and how well each layer finds documents."""
