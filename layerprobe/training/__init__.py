"""One training loop on texts that can be interrupted, and how an unfinished run and a trained model are kept."""
