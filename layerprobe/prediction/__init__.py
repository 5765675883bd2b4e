"""CKA curves -> which layers will drop, which layer to keep, and how surely; and how good such predictions are.

Knows numbers, no models, and no files but that of the zoo.
"""
