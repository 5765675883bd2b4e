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

_CLASSES = {"loss": "layerprobe.finetuning.losses:TextClasses", "probe": "layerprobe.scoring.probes:LOGISTIC"}
LEARNING = {
    "sts": {"loss": "layerprobe.finetuning.losses:CosineScore", "probe": "layerprobe.scoring.probes:RIDGE"},
    "paraphrase": {"loss": "layerprobe.finetuning.losses:CosineDecision"},
    "entailment": {"loss": "layerprobe.finetuning.losses:PairClasses", "probe": "layerprobe.scoring.probes:LOGISTIC"},
    "regression": {"loss": "layerprobe.finetuning.losses:TextValue", "probe": "layerprobe.scoring.probes:RIDGE"},
    "classification": _CLASSES,
    "image classification": _CLASSES,
    "summarization": {
        "loss": "layerprobe.kinds.summaries_loss:SentenceScorer",
        "untrained": "layerprobe.kinds.summaries_loss:score_central",
        "outputs": "layerprobe.kinds.summaries:central",
        "ways": "layerprobe.kinds.summaries_loss:summary_ways",
    },
    "tags": {
        "loss": "layerprobe.kinds.tokens_loss:WordClasses",
        "untrained": "layerprobe.kinds.tokens_loss:score_words",
    },
    "retrieval": {
        "loss": "layerprobe.kinds.retrieval_loss:MultipleNegatives",
        "untrained": "layerprobe.kinds.retrieval_loss:untrained_retrieval",
        "outputs": "layerprobe.kinds.retrieval_loss:closest",
    },
    "triplets": {
        "loss": "layerprobe.finetuning.losses:CosineTriplets",
        "untrained": "layerprobe.scoring.score:score_outputs",
        "outputs": "layerprobe.kinds.triplets:cosine_differences",
    },
    "question answering": {
        "loss": "layerprobe.kinds.answers_loss:AnswerSpan",
        "untrained": "layerprobe.kinds.answers_loss:answer_probe",
    },
}
"""Parts of each kind's `Learning`, which need torch or scikit-learn; entities learn like tags."""
