"""Embeddings of models -> their similarity, layer by layer, kept in the store."""
