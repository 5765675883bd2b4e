"""A truncated encoder as a folder for transformers and sentence-transformers."""
