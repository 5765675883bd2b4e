"""Results as tables for every output, and the skeleton of every HTML page. Knows no feature."""
