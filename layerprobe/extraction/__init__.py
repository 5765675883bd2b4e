"""From texts to the pooled embeddings of every layer, in one forward pass."""
