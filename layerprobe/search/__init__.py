"""Scores of a few runs -> which layer to keep, how certain that is, and which run would tell most. Trains nothing."""
