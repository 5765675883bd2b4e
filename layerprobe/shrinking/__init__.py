"""Smaller models: choose blocks to keep, train them to agree with the whole model, and measure the loss."""
