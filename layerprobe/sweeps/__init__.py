"""Layers x seeds x tasks x models to fine-tune, in a pool of processes."""
