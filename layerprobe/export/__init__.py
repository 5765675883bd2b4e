"""A truncated encoder as a folder that transformers and sentence-transformers load."""
