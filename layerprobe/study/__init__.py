"""The pipeline, in the order a reader tells it: extract, compare, predict, confirm.

Each stage is one function; what was done before is read from the store instead of done again.
"""

from layerprobe._version import versions
from layerprobe.study.adapting import adapt, load_corpus
from layerprobe.study.chain_files import load_chain
from layerprobe.study.chains import plan_chain, run_chain
from layerprobe.study.comparison import compare, compare_all
from layerprobe.study.embeddings import Embeddings, extract, measure_tokens
from layerprobe.study.lab import plan_lab, run_lab
from layerprobe.study.lab_files import load_lab
from layerprobe.study.label_free import label_free_metrics
from layerprobe.study.options import Options
from layerprobe.study.pipeline import doctor, run
from layerprobe.study.plans import Sweep, load_sweep, sweep_toml
from layerprobe.study.prediction import cautions, chosen_rule, predict, rule_by_reference, rule_readings
from layerprobe.study.pretraining import plan_pretraining, pretrain
from layerprobe.study.profiling import profile
from layerprobe.study.retrieval import evaluate_retrieval, retrieve
from layerprobe.study.scoring import fitted_on, score, zero_shot
from layerprobe.study.sweeping import planned_runs, sweep
from layerprobe.study.tuning import PAPER_SEEDS, confirm, finetune

__all__ = [
    "PAPER_SEEDS",
    "Embeddings",
    "Options",
    "Sweep",
    "adapt",
    "cautions",
    "chosen_rule",
    "compare",
    "compare_all",
    "confirm",
    "doctor",
    "evaluate_retrieval",
    "extract",
    "finetune",
    "fitted_on",
    "label_free_metrics",
    "load_chain",
    "load_corpus",
    "load_lab",
    "load_sweep",
    "measure_tokens",
    "plan_chain",
    "plan_lab",
    "plan_pretraining",
    "planned_runs",
    "predict",
    "pretrain",
    "profile",
    "retrieve",
    "rule_by_reference",
    "rule_readings",
    "run",
    "run_chain",
    "run_lab",
    "score",
    "sweep",
    "sweep_toml",
    "versions",
    "zero_shot",
]
