"""Families of rules, a module each."""
