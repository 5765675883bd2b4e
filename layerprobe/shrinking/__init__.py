"""A smaller model: which blocks to keep, trained to agree with the whole one, and shown not to be worse."""
