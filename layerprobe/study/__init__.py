"""The pipeline, in the order a reader tells it: extract, compare, predict, confirm.

Each stage is one function; what was done before is read from the store instead of done again.
"""
