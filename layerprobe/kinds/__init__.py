"""Kinds of tasks, each in its own module: items, files, loss and metrics."""

KINDS = {
    "sts": "layerprobe.kinds.sentences:STS",
    "paraphrase": "layerprobe.kinds.sentences:PARAPHRASE",
    "entailment": "layerprobe.kinds.sentences:ENTAILMENT",
    "regression": "layerprobe.kinds.sentences:REGRESSION",
    "classification": "layerprobe.kinds.sentences:CLASSIFICATION",
    "summarization": "layerprobe.kinds.summaries:SUMMARIZATION",
    "image classification": "layerprobe.kinds.images:IMAGE_CLASSIFICATION",
    "entities": "layerprobe.kinds.tokens:ENTITIES",
    "tags": "layerprobe.kinds.tokens:TAGS",
    "retrieval": "layerprobe.kinds.retrieval:RETRIEVAL",
    "triplets": "layerprobe.kinds.triplets:TRIPLETS",
    "question answering": "layerprobe.kinds.answers:QUESTION_ANSWERING",
}
"""Kinds by name, in the order in which they are tried for a file."""
