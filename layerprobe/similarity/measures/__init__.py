"""The measures of similarity, one module per family, with their mathematics and settings."""
