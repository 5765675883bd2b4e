"""Research behind the tool. Imports everything; only the command line imports it."""
