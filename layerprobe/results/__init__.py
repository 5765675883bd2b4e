"""A result as one table that is shown everywhere, and the skeleton of every HTML page. Knows no feature."""
