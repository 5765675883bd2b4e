"""Texts -> the pooled embeddings of every layer, in one forward pass."""
