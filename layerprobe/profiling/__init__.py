"""What truncated models cost to serve: FLOPs, seconds and memory. Knows loaded models; no texts and no files."""
