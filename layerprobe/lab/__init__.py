"""Research behind the tool. Imports everything; only the command line imports it."""

from layerprobe.results.shown import PAGES

PAGES.add(
    {
        "Bench": "layerprobe.lab.dropbench.page:bench_page",
        "ChainResult": "layerprobe.lab.chains.page:chain_page",
        "Ensemble": "layerprobe.lab.ensembles.page:ensemble_page",
        "LabResult": "layerprobe.lab.studies.page:lab_page",
    }
)
