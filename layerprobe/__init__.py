"""layerprobe: choose which layer of an encoder to keep for sentence embeddings, with a confidence and a cost.

    import layerprobe as lp

    task = lp.load_task("stsb")
    finding = lp.find("google/electra-base-discriminator", task, reference="google-bert/bert-base-cased")
    print(finding.sentence)
    lp.save(finding, "report.html")

The main functions are here; the rest is in modules such as `layerprobe.finetuning.tuning`. Names load on
first use, so that `import layerprobe` needs neither torch nor plotly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerprobe.versions import __version__ as __version__

if TYPE_CHECKING:
    from layerprobe.comparison.compare import compare as compare
    from layerprobe.context import settings as settings
    from layerprobe.embedded import embedded_model as embedded_model
    from layerprobe.embedded import embedded_task as embedded_task
    from layerprobe.encoders.model import Model as Model
    from layerprobe.errors import LayerProbeError as LayerProbeError
    from layerprobe.export.run import export_model as export_model
    from layerprobe.extraction.embeddings import extract as extract
    from layerprobe.extraction.snapshot import snapshot as snapshot
    from layerprobe.finetuning.tuning import finetune as finetune
    from layerprobe.finetuning.values import Protocol as Protocol
    from layerprobe.probing.run import probe as probe
    from layerprobe.results.shown import load as load
    from layerprobe.results.shown import save as save
    from layerprobe.scoring.score import score as score
    from layerprobe.search.ask import LayerSearch as LayerSearch
    from layerprobe.shrinking.run import shrink as shrink
    from layerprobe.shrinking.values import ShrinkSettings as ShrinkSettings
    from layerprobe.similarity.cka import cka_interval as cka_interval
    from layerprobe.similarity.cka import linear_cka as linear_cka
    from layerprobe.store.store import cache as cache
    from layerprobe.study.find import find as find
    from layerprobe.study.predict import predict as predict
    from layerprobe.tasks.loading import load_task as load_task
    from layerprobe.tasks.loading import load_texts as load_texts
    from layerprobe.tasks.values import Task as Task
    from layerprobe.trainer import LayerEvaluator as LayerEvaluator
    from layerprobe.trainer import truncate as truncate

_MODULES = {
    "comparison.compare": "compare",
    "encoders.model": "Model",
    "errors": "LayerProbeError",
    "export.run": "export_model",
    "extraction.embeddings": "extract",
    "extraction.snapshot": "snapshot",
    "finetuning.tuning": "finetune",
    "finetuning.values": "Protocol",
    "embedded": "embedded_model embedded_task",
    "probing.run": "probe",
    "results.shown": "load save",
    "scoring.score": "score",
    "search.ask": "LayerSearch",
    "shrinking.run": "ShrinkSettings shrink",
    "similarity.cka": "cka_interval linear_cka",
    "store.store": "cache",
    "study.find": "find",
    "study.predict": "predict",
    "context": "settings",
    "tasks.loading": "Task load_task load_texts",
    "trainer": "LayerEvaluator truncate",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'layerprobe' has no attribute {name!r}")
    return getattr(import_module(f"layerprobe.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return ["__version__", *_MODULE_OF]
