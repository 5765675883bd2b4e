"""The pipeline, in the order a reader tells it: extract, compare, predict, confirm.

Each stage is one function; what was done before is read from the store instead of done again.
"""

from layerprobe._version import versions
from layerprobe.study.adapting import adapt, load_corpus
from layerprobe.study.comparison import compare, compare_all
from layerprobe.study.embeddings import Embeddings, extract
from layerprobe.study.options import Options
from layerprobe.study.pipeline import doctor, run
from layerprobe.study.plans import Sweep, load_sweep, sweep_toml
from layerprobe.study.prediction import cautions, predict
from layerprobe.study.profiling import profile
from layerprobe.study.scoring import fitted_on, zero_shot
from layerprobe.study.sweeping import planned_runs, sweep
from layerprobe.study.tuning import PAPER_SEEDS, confirm, finetune

__all__ = [
    "PAPER_SEEDS",
    "Embeddings",
    "Options",
    "Sweep",
    "adapt",
    "cautions",
    "compare",
    "compare_all",
    "confirm",
    "doctor",
    "extract",
    "finetune",
    "fitted_on",
    "load_corpus",
    "load_sweep",
    "planned_runs",
    "predict",
    "profile",
    "run",
    "sweep",
    "sweep_toml",
    "versions",
    "zero_shot",
]
