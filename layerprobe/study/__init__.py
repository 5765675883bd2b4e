"""The main line: predict and find.

Each is one function; what was done before is read from the store instead of done again.
"""
