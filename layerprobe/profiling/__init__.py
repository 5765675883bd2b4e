"""The costs of serving truncated models: FLOPs, seconds and memory."""
