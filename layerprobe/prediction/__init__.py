"""Predictions of the layer to keep from numbers by layer, and their track record.

Knows numbers, no models and no files.
"""
