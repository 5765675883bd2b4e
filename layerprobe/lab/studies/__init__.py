"""Encoders that differ in their pretraining alone, and what the objective does to each layer."""
