"""Studies, comparisons, predictions, scores and runs as figures, each as one HTML page."""

PAGES = {
    "Comparison": "layerprobe.report.comparison:comparison_page",
    "Comparisons": "layerprobe.report.comparison:comparison_page",
    "SimilarityMap": "layerprobe.report.comparison:map_page",
    "Scores": "layerprobe.report.scores:scores_page",
    "LayerScores": "layerprobe.report.scores:layer_scores_page",
    "FoundModels": "layerprobe.report.scores:found_models_page",
    "LayerCurve": "layerprobe.report.scores:curve_page",
    "TuningResult": "layerprobe.report.tuning:result_page",
    "readings": "layerprobe.report.scores:readings_page",
    "FineTuningRun": "layerprobe.report.tuning:run_page",
    "JointRun": "layerprobe.report.tuning:joint_page",
    "Confirmation": "layerprobe.report.tuning:confirmation_page",
    "Finding": "layerprobe.report.tuning:finding_page",
    "DropPrediction": "layerprobe.report.prediction:drop_page",
    "Prediction": "layerprobe.report.prediction:prediction_page",
    "Study": "layerprobe.report.page:study_page",
    "Profile": "layerprobe.profiling.page:profile_page",
    "Profiles": "layerprobe.profiling.page:profile_page",
    "Probing": "layerprobe.probing.page:probing_page",
    "Shrunk": "layerprobe.shrinking.page:shrunk_page",
    "EqualSize": "layerprobe.shrinking.page:equal_page",
    "SweepResult": "layerprobe.results.declared:declared_page",
}
"""By the name of a result's class, or of what is not one result."""
