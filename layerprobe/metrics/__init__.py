"""What outputs score on a task: names, formulas, scores over seeds. Knows arrays, no models."""
