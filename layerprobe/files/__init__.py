"""Disk access: whole files or none, checked, within limits. Knows bytes and values, not their meaning."""
