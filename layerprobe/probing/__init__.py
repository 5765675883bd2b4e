"""Frozen embeddings of every layer, from any source, and targets -> which layer to use."""
