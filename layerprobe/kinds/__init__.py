"""Kinds of tasks, a folder each: what is learnt, its items, how files of it look, its loss and its metrics."""
