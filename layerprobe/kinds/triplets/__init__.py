"""Triplets: which of two texts is closer to a third."""
