"""The layer to keep, its certainty, and the most informative next run, from the scores of a few. Trains nothing."""
