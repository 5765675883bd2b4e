"""Scores of a few runs -> which layer to keep, how surely, and which run would tell most. Trains nothing."""
