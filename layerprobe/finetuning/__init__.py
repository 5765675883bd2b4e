"""Truncated model fine-tuning (TMFT), its runs on disk, and what they say together."""
