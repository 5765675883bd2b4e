"""Research: what was found out for the tool, and by what. Uses everything; only the command line uses it."""
