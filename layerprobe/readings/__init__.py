"""Numbers by layer of one model: what each is, how it is computed, how surely it is known."""
