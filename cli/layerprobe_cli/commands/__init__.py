"""Commands, a module for each panel of the help: options, checks and one call of the library.

A public function whose first argument is a call is a command, listed in the order of the file.

A command imports torch only after reading data and options, so that their errors appear at once.
"""
