"""Similarity of models' embeddings, layer by layer, cached in the store."""
