"""Findings, comparisons, predictions, scores and runs as figures, each as one HTML page."""

PAGES = {}
"""By the name of a result's class, or of what is not one result."""

RESULTS = {
    "Finding": "layerprobe.study.values:Finding",
    "Prediction": "layerprobe.study.values:Prediction",
    "Scores": "layerprobe.scoring.values:Scores",
    "TuningResult": "layerprobe.finetuning.values:TuningResult",
    "Differences": "layerprobe.comparison.differences:Differences",
    "Comparison": "layerprobe.comparison.values:Comparison",
    "Comparisons": "layerprobe.comparison.values:Comparisons",
    "Probing": "layerprobe.probing.values:Probing",
    "Shrunk": "layerprobe.shrinking.values:Shrunk",
    "Profiles": "layerprobe.profiling.values:Profiles",
    "Profile": "layerprobe.profiling.values:Profile",
    "SimilarityMap": "layerprobe.similarity.values:SimilarityMap",
    "DropPrediction": "layerprobe.prediction.values:DropPrediction",
    "LayerCurve": "layerprobe.readings.reading:LayerCurve",
    "LayerScores": "layerprobe.scoring.values:LayerScores",
    "SearchAnswer": "layerprobe.search.values:SearchAnswer",
}
"""The classes of results in the order in which JSON is tried to be of them; see `layerprobe.results.kept`."""
