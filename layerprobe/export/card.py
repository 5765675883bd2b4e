"""The model card of an export: values for its template, card.md.jinja. Knows no files and no models."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from layerprobe.encoders.engines import FLOATS
from layerprobe.encoders.model import ModelDescription, Pooling
from layerprobe.export.folder import Int8File, Layout
from layerprobe.extraction.check import tokens_phrase
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.runs import RunOrigin
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, short_name
from layerprobe.results import words
from layerprobe.stats.values import seed_scores
from layerprobe.versions import __version__

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&$@])")
_POOLING: dict[Pooling, str] = {
    "mean": "the mean over the tokens",
    "cls": "the first token",
    "max": "the maximum over the tokens",
    "last": "the last token",
}
_IMAGE_POOLING: dict[Pooling, tuple[str, str]] = {
    "mean": ("the mean over the patches", "states[:, {n}:].mean(dim=1)"),
    "cls": (Markup("the first token, [CLS]"), "states[:, 0]"),
    "max": ("the maximum over the patches", "states[:, {n}:].amax(dim=1)"),
}
"""In words, and as torch code, with {n} tokens before the patches."""


def card(
    model: ModelDescription,
    layer: int,
    layout: Layout,
    *,
    loader: str = "AutoModel",
    padding_invariant: bool = True,
    run: FineTuningRun | None = None,
    origin: RunOrigin | None = None,
    runs: Sequence[FineTuningRun] = (),
    finding: Any = None,
    made: str = "",
    prompts: tuple[str, str] | None = None,
    int8: Sequence[Int8File] = (),
    changes: Sequence[str] = (),
) -> str:
    """Return the model card of `model` truncated at `layer`: YAML front matter and Markdown.

    Args:
        model: Description of the model before truncation and fine-tuning.
        layer: Number of kept blocks.
        layout: How token states become one embedding.
        loader: The auto class of transformers that makes the bare encoder.
        padding_invariant: Whether texts of different lengths can share a batch.
        run: The exported fine-tuning run.
        origin: Where that run started; required with it.
        runs: Available runs of this layer with all seeds, including that one.
        finding: Evidence for the choice of the layer, or for its weights: a `Finding` or a `Probing`.
        made: How the model was made and what was measured.
        prompts: Prompts before queries and documents, if documents can stay embedded by the whole model.
        int8: Its 8-bit graphs.
        changes: Differences from the base model, in words.
    """
    images, settings = layout.n_extra is not None, layout.source.settings if layout.source else {}
    pooling = f"{layout.pooled} pooling" if layout.pooled != layout.pooling else _POOLING[layout.pooling]
    embeddings = ""
    if layout.n_extra is not None:
        pooling, embeddings = _IMAGE_POOLING[layout.pooling]
    before = (model.whole_parameters or model.parameters)[-1]
    tuned = {} if run is None or origin is None else _fine_tuning(run, origin, runs or [run])
    named = model if finding is None else finding.model
    return _template().render(
        metadata=_metadata(model, images=images),
        title=short_name(named.name if named.source else _model_name(named)),
        model=model,
        name=_model_name(model),
        on_hub=_is_on_hub(model),
        whole=_whole_name(model),
        layer=layer,
        blocks=_blocks(model, layer),
        parameters=parameters_phrase(model.parameters[layer], before),
        saved=1 - model.parameters[layer] / before if before else 0.0,
        vocabulary=model.vocabulary and tokens_phrase(model.vocabulary),
        layout=layout,
        images=images,
        pooling=pooling,
        embeddings=embeddings.format(n=layout.n_extra),
        dim=settings.get("truncate_dim"),
        behind=[kind for kind in layout.modules if kind != "Pooling"],
        similarity=settings.get("similarity_fn_name") or "cosine",
        loader=loader,
        padding_invariant=padding_invariant,
        changes=changes,
        int8=int8,
        floats=FLOATS,
        made=made,
        prompts=prompts,
        run=run,
        **tuned,
        finding=finding,
        sentence=finding and words.sentence(finding.conclusion),
        checks=[words.line(check, finding.conclusion) for check in finding.conclusion.checks] if finding else [],
        finding_data=finding and shown_name(finding.task),
        layers=finding and finding.table,
        version=__version__,
    )


def parameters_phrase(n: int, whole: int) -> str:
    """Return the number of parameters of a model, compared with the full one.

    Examples:
        >>> parameters_phrase(300, 4000), parameters_phrase(4000, 4000)
        ('300 instead of 4,000', '4,000, as in the full model')
    """
    return f"{n:,} instead of {whole:,}" if n != whole else f"{n:,}, as in the full model"


def escaped(text: str) -> str:
    r"""Return `text` on one line, escaped for Markdown and HTML.

    Examples:
        >>> escaped("a|b <i>\n*c*")
        'a\\|b \\<i\\> \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def shown_name(name: str) -> str:
    """Return a hub id, or the last part of a path, to keep local folders private.

    Examples:
        >>> shown_name("org/data"), shown_name("/home/someone/pairs.csv"), shown_name("../pairs.csv")
        ('org/data', 'pairs.csv', 'pairs.csv')
    """
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    return _last_part(name) if is_path else name


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _model_name(model: ModelDescription) -> str:
    return (model.source or model.name) if _is_on_hub(model) else _last_part(model.source or model.name)


def _is_on_hub(model: ModelDescription) -> bool:
    return not model.revision.startswith("sha256:")


def _whole_name(model: ModelDescription) -> str:
    """Return the model's hub id or folder name, without blocks, modality and revision."""
    return re.split(r" \((?:random init|blocks )|:(?:image|text)(?=$| \()|@", _model_name(model))[0]


def _metadata(model: ModelDescription, *, images: bool) -> str:
    """Return the YAML front matter of the card."""
    library, task = "sentence-transformers", "sentence-similarity"
    if images:
        library, task = "transformers", "image-feature-extraction"
    data = ModelCardData(
        library_name=library,
        pipeline_tag=task,
        tags=[library, task, *(() if images else ("feature-extraction",)), "layerprobe", "truncated"],
        # nobody else can look up a local folder
        base_model=_whole_name(model) if _is_on_hub(model) else None,
    )
    return data.to_yaml()


def _blocks(model: ModelDescription, layer: int) -> str:
    """Return the kept blocks in words, to follow "the embeddings"."""
    if layer and model.blocks is not None:
        n_blocks = len(model.whole_parameters or model.parameters) - 1
        return f"and block{'s' * (layer > 1)} {', '.join(map(str, model.blocks[:layer]))} of {n_blocks}"
    if layer == model.n_blocks > 1:
        return f"and all {layer} blocks"
    return ("alone", "and the first block")[layer] if layer < 2 else f"and the first {layer} blocks"


def _fine_tuning(run: FineTuningRun, origin: RunOrigin, runs: Sequence[FineTuningRun]) -> dict[str, object]:
    """Return the card's values on fine-tuning; with several seeds, the mean counts."""
    seeds = "One seed: the spread over seeds is unknown."
    if len(runs) > 1:
        numbers = ", ".join(str(other.seed) for other in runs)
        seeds = f"Best epoch of each of the seeds {numbers}; the score of this layer is the mean over seeds."
    return {
        "data": shown_name(origin.task),
        "pairs": origin.pairs,
        "epochs": counted(run.best_epoch, "epoch"),
        "settings": [(name.replace("_", " "), str(value)) for name, value in to_dict(run.protocol).items()],
        "scores": list(_scores(run, runs)),
        "seeds": seeds,
    }


def _scores(run: FineTuningRun, runs: Sequence[FineTuningRun]) -> Iterator[tuple[str, ...]]:
    """Yield the table of scores: the header, then one row per metric."""
    if len(runs) < 2:
        yield "Metric", "this model" if run.protocol.kept_epoch else "best epoch"
    else:
        yield "Metric", "mean ± deviation", "interval over seeds", "by seed", f"this checkpoint, seed {run.seed}"
    for split in ("test",) if run.protocol.kept_epoch else ("validation", "test"):
        for name, value in getattr(run, split).items():
            spread: tuple[str, ...] = ()
            if len(runs) > 1:
                scores = seed_scores([getattr(other, split)[name] for other in runs], metric=name)
                spread = (
                    f"{scores.mean:.2f} ± {scores.std:.2f}",
                    "{:.2f} to {:.2f}".format(*scores.interval or ()),
                    " ".join(f"{score:.2f}" for score in scores.values),
                )
            yield f"{split} {metric_title(name)}", *spread, f"{value:.2f}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("layerprobe.export", ""),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escaped(str(value))),
    )
    environment.filters["quoted"] = partial(json.dumps, ensure_ascii=False)
    return environment.get_template("card.md.jinja")
