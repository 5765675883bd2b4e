"""Retrieval: the documents that belong to a query, found among all documents."""

from pathlib import Path

from layerprobe.kinds.retrieval.metrics import listed_floors, listed_influences, listed_scores
from layerprobe.metrics.names import LISTED_METRICS
from layerprobe.tasks.kind import Kind


def _is_collection(path: Path) -> bool:
    """Return whether a folder is in the layout of BEIR."""
    if not path.is_dir():
        return False
    stems = {file.stem for file in path.iterdir()}
    return {"corpus", "queries"} <= stems


RETRIEVAL = Kind(
    name="retrieval",
    pairs=True,
    labelled=False,
    metrics=LISTED_METRICS,
    score=listed_scores,
    influences=listed_influences,
    loss="layerprobe.kinds.retrieval.loss:MultipleNegatives",
    zero_shot="own",
    untrained="layerprobe.kinds.retrieval.untrained:untrained_retrieval",
    outputs="layerprobe.kinds.retrieval.untrained:closest",
    items="layerprobe.kinds.retrieval.items:RetrievalItems",
    item="query",
    loader="layerprobe.kinds.retrieval.loading:load_retrieval_task",
    prompts=True,
    recognises=_is_collection,
    one_target=True,
    floors=listed_floors,
)
