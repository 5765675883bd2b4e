"""Scores with their errors: intervals, differences, which may be best, and what is said of them. Knows no models."""
