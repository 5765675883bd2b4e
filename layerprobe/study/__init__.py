"""The main functions: predict and find.

Each is one function; finished work is read from the store instead of being repeated.
"""
