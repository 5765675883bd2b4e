"""A study as the sections of a page."""
