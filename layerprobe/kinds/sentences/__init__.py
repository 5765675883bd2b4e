"""Tasks of texts and pairs of texts with scores or labels."""
