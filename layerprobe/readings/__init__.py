"""Readings: numbers by layer of one model, their computation and uncertainty."""
