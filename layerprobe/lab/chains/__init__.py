"""Trainings one after the other, and what the first ones add."""
