"""Truncated model fine-tuning (TMFT), its runs on disk, and the verdict over them."""
