"""One training loop on texts, for what goes on with a model and for what begins one.

Knows token ids, objectives, steps and where an unfinished run is kept; knows neither tasks nor similarity.
"""
