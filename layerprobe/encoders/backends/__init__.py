"""The same embeddings, computed by other libraries than torch on a CPU: which there are, checked and chosen."""
