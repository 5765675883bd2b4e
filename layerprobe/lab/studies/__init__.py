"""Encoders that differ only in their pretraining objective, and its effect on each layer."""
