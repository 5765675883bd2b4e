"""Scores with their errors: intervals, differences, sets with the best one, and sentences. Knows no models."""
