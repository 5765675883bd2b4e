"""The skeleton of every HTML page: markup, parts, figures, one writer. Knows no feature."""
