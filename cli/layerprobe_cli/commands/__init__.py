"""One module per command: options, checks and one call of the library.

A command imports what needs torch after the data and options are read, so that their errors come at once.
"""
