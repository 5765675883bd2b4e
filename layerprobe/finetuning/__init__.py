"""Truncated model fine-tuning (TMFT), its runs on disk, and their statistics."""
