"""One interruptible training loop on texts, and storage of unfinished runs and trained models."""
