"""Tasks and texts from files and the Hub. Knows data files, not models."""
