"""Numbers by layer -> where to look first for the layer to keep, and what that is worth.

Knows numbers, no models and no files.
"""
