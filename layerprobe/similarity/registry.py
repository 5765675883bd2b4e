"""The measures of similarity by their names in the command line and JSON. Imports none of them."""

from layerprobe.registry import Registry

MEASURES: Registry[type] = Registry(
    "layerprobe.measures",
    type,
    what="measure",
    shipped={
        "cka": "layerprobe.similarity.measures.cka:CKA",
        "mutual-knn": "layerprobe.similarity.measures.neighbours:MutualKNN",
        "procrustes": "layerprobe.similarity.measures.procrustes:Procrustes",
        "svcca": "layerprobe.similarity.measures.cca:SVCCA",
    },
)
"""Subclasses of `layerprobe.similarity.values.Measure` by name."""
