"""Embeddings and labels -> scores of every layer without fine-tuning."""
