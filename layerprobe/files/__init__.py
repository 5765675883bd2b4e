"""Disk manners: whole or not at all, checked, within limits. Knows bytes and values, not what they mean."""
