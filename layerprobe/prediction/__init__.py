"""Numbers by layer -> which layers will drop, which layer to keep, and how surely.

Knows numbers, no models and no files.
"""
