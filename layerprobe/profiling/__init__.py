"""What truncated models cost to serve: FLOPs, seconds and memory."""
