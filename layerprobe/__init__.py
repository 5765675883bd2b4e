"""layerprobe: at which layer are an encoder's sentence embeddings best, before fine-tuning?

The public names load on first use, so that `import layerprobe` needs neither torch nor plotly:

    import layerprobe as lp

    task = lp.load_task("stsb")
    study = lp.run("google/electra-base-discriminator", reference="google-bert/bert-base-cased", task=task)
    print(study.prediction.sentence)
    lp.write_report(study, "report.html")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerprobe._version import __version__

if TYPE_CHECKING:
    from layerprobe.errors import LayerProbeError
    from layerprobe.prediction import bench_predictors, read_zoo, rule_names, write_zoo
    from layerprobe.pretraining.embedded import embedded_model, embedded_task
    from layerprobe.report import write_report
    from layerprobe.results import (
        Chain,
        Examples,
        LabStudy,
        Measure,
        PretrainingProtocol,
        Protocol,
        Study,
        Task,
        from_json,
        to_json,
    )
    from layerprobe.similarity import cka_interval, cka_map, diagnose, linear_cka, rbf_cka
    from layerprobe.study import (
        Options,
        Sweep,
        adapt,
        compare,
        compare_all,
        confirm,
        doctor,
        extract,
        finetune,
        label_free_metrics,
        load_chain,
        load_corpus,
        load_lab,
        load_sweep,
        predict,
        pretrain,
        profile,
        retrieve,
        rule_readings,
        run,
        run_chain,
        run_lab,
        score,
        sweep,
        zero_shot,
    )
    from layerprobe.study.exporting import export_model
    from layerprobe.tasks import load_retrieval, load_task, load_texts, load_word_similarity

_HOMES = {
    "layerprobe.errors": ("LayerProbeError",),
    "layerprobe.pretraining.embedded": ("embedded_model", "embedded_task"),
    "layerprobe.prediction": ("bench_predictors", "read_zoo", "rule_names", "write_zoo"),
    "layerprobe.report": ("write_report",),
    "layerprobe.results": (
        "Chain",
        "Examples",
        "LabStudy",
        "Measure",
        "PretrainingProtocol",
        "Protocol",
        "Study",
        "Task",
        "from_json",
        "to_json",
    ),
    "layerprobe.similarity": ("cka_interval", "cka_map", "diagnose", "linear_cka", "rbf_cka"),
    "layerprobe.study": (
        "Options",
        "Sweep",
        "adapt",
        "compare",
        "compare_all",
        "confirm",
        "doctor",
        "extract",
        "finetune",
        "label_free_metrics",
        "load_chain",
        "load_corpus",
        "load_lab",
        "load_sweep",
        "predict",
        "pretrain",
        "profile",
        "retrieve",
        "rule_readings",
        "run",
        "run_chain",
        "run_lab",
        "score",
        "sweep",
        "zero_shot",
    ),
    "layerprobe.study.exporting": ("export_model",),
    "layerprobe.tasks": ("load_retrieval", "load_task", "load_texts", "load_word_similarity"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Chain",
    "Examples",
    "LabStudy",
    "LayerProbeError",
    "Measure",
    "Options",
    "PretrainingProtocol",
    "Protocol",
    "Study",
    "Sweep",
    "Task",
    "__version__",
    "adapt",
    "bench_predictors",
    "cka_interval",
    "cka_map",
    "compare",
    "compare_all",
    "confirm",
    "diagnose",
    "doctor",
    "embedded_model",
    "embedded_task",
    "export_model",
    "extract",
    "finetune",
    "from_json",
    "label_free_metrics",
    "linear_cka",
    "load_chain",
    "load_corpus",
    "load_lab",
    "load_retrieval",
    "load_sweep",
    "load_task",
    "load_texts",
    "load_word_similarity",
    "predict",
    "pretrain",
    "profile",
    "rbf_cka",
    "read_zoo",
    "retrieve",
    "rule_names",
    "rule_readings",
    "run",
    "run_chain",
    "run_lab",
    "score",
    "sweep",
    "to_json",
    "write_report",
    "write_zoo",
    "zero_shot",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'layerprobe' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
