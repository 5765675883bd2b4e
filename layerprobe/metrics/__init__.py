"""What outputs score on a task: names, formulas, what each item adds. Knows arrays, no models."""
