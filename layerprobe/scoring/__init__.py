"""Scores of every layer without fine-tuning, from embeddings and labels."""
