"""Weighted averages of the outputs of finished runs: what they gain over the best one, and what they cost."""
