"""One module per command: options, checks and one call of the library.

A command imports torch only after reading data and options, so that their errors appear at once.
"""
