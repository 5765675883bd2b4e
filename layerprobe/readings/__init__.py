"""Numbers by layer of one model: what each is, how it is computed, its uncertainty."""
