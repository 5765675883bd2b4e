"""Numbers by layer -> which layers will drop, which layer to keep, and how certain that is.

Knows numbers, no models and no files.
"""
