"""Frozen embeddings of every layer, of anything, and targets -> which layer to use."""
