"""Scores of outputs on a task: names, formulas, contributions of single items. Knows arrays, no models."""
