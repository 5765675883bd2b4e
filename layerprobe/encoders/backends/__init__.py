"""The same embeddings computed by libraries other than torch on a CPU: registered, checked and chosen."""
