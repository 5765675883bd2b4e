"""The HSIC engine and the measures: arrays in, frozen results out. Knows no files and no models.

`hsic`, `linear_gram` and `rbf_gram` are the definitions, one whole Gram matrix in float64 at a time; `estimate_cka`
and what is built on it get the same numbers from tiles, for all layers at once.
"""
