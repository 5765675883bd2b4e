"""The model card of an export. Knows Markdown, no files and no models."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from huggingface_hub import EvalResult, ModelCardData

from layerprobe.encoders.backends.int8 import FLOATS
from layerprobe.encoders.model import ModelDescription, Pooling
from layerprobe.export.layout import Int8File, Layout
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.saved import RunOrigin
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, short_name
from layerprobe.stats.sentences import tokens_phrase
from layerprobe.stats.values import seed_scores
from layerprobe.study.tables import finding_table
from layerprobe.study.values import Finding
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
    "cls": ("the first token, [CLS]", "states[:, 0]"),
    "max": ("the maximum over the patches", "states[:, {n}:].amax(dim=1)"),
}
"""In words, and as code of torch, with {n} tokens before the patches."""
_USE = """## Use

```python
from sentence_transformers import SentenceTransformer

texts = ["A sentence.", "Another, longer sentence."]
model = SentenceTransformer("{place}")
embeddings = model.encode(texts{batch_size})
```"""
_USE_IMAGES = """## Use

```python
import torch
from PIL import Image
from transformers import AutoImageProcessor, {loader}

images = [Image.open("an_image.png").convert("RGB")]
processor = AutoImageProcessor.from_pretrained("{place}")
model = {loader}.from_pretrained("{place}").eval()
with torch.inference_mode():
    states = model(**processor(images=images, return_tensors="pt")).last_hidden_state
embeddings = {embeddings}
```"""
_IN_8_BITS = """## In 8 bits

The encoder is also here with its weights and activations in 8 bits; the table of words stays in float32.
sentence-transformers loads it where optimum is installed{alone}:

```python
from sentence_transformers import SentenceTransformer
{models}
```

What 8 bits lose on a task was not measured by the export."""


PLACE = "path/to/this/folder"
"""What the code of a card calls the export."""
_METRIC_IDS = {"spearman": "spearmanr", "pearson": "pearsonr"}
"""What the Hub calls metrics that it names otherwise."""
_FOR_TEXTS = "sentence-transformers", "sentence-similarity"


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
    beside: Mapping[str, float] | None = None,
    finding: Finding | None = None,
    made: str = "",
    int8: Sequence[Int8File] = (),
    changes: Sequence[str] = (),
) -> str:
    """Return the model card of `model` truncated at `layer`: YAML front matter and Markdown.

    Args:
        model: The model before truncation and fine-tuning.
        layer: Blocks kept.
        layout: How token states become one embedding.
        loader: The auto class of transformers that makes the bare encoder.
        padding_invariant: Whether texts of unequal length can share a batch.
        run: The run of fine-tuning that it is of.
        origin: What that run started from; given with it.
        runs: Those of this layer with every seed that is available, that one among them.
        beside: Test scores to compare with, by what they are of.
        finding: Evidence for the choice of the layer.
        made: How it was made and what was measured of it.
        int8: Its graphs with products of 8 bits.
        changes: What of it is not as in the base model, in words.
    """
    called = _called(model if finding is None else finding.model)
    how_made = None if run is None or origin is None else _training(run, origin, runs, beside or {})
    parts = (
        _front_matter(model, layer, images=layout.n_extra is not None, run=run, origin=origin),
        f"# {escaped(short_name(called))}, {'made smaller' if made else f'truncated at layer {layer}'}",
        _summary(model, layer, layout, tuned=run is not None, changes=changes),
        _use(layout, loader=loader, padding_invariant=padding_invariant),
        _in_8_bits(int8, padding_invariant=padding_invariant) if int8 else None,
        f"## How it was made\n\n{escaped(made)}" if made else how_made,
        None if finding is None else _evidence(finding, layer),
        f"Written by layerprobe {__version__}.",
    )
    return "\n\n".join(part for part in parts if part is not None) + "\n"


def escaped(text: str) -> str:
    r"""Return `text` as one line in which Markdown and HTML see no markup.

    Examples:
        >>> escaped("a|b <i>\n*c*")
        'a\\|b \\<i\\> \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def shown_name(name: str) -> str:
    """Return a hub id, or the last part of a path, so that local folders stay private.

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


def _called(model: ModelDescription) -> str:
    """Return a model's label: as requested, or its hub id or folder."""
    return model.name if model.source else _model_name(model)


def _is_on_hub(model: ModelDescription) -> bool:
    return not model.revision.startswith("sha256:")


def _front_matter(
    model: ModelDescription, layer: int, *, images: bool, run: FineTuningRun | None, origin: RunOrigin | None
) -> str:
    hub_id = (
        (model.source or model.name)
        .partition(" (random init")[0]
        .partition(" (blocks ")[0]
        .removesuffix(":image")
        .removesuffix(":text")
    )
    hub_id = hub_id.partition("@")[0]
    library, task = ("transformers", "image-feature-extraction") if images else _FOR_TEXTS
    results = [] if run is None or origin is None else _results(task, shown_name(origin.task), run.test)
    data = ModelCardData(
        model_name=f"{short_name(_called(model))}-layer-{layer}" if results else None,
        eval_results=results or None,
        library_name=library,
        pipeline_tag=task,
        tags=[library, task, *(() if images else ("feature-extraction",)), "layerprobe", "truncated"],
        # a local folder is no model that anyone else could look up
        base_model=hub_id if _is_on_hub(model) else None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _results(task: str, data: str, tested: Mapping[str, float]) -> list[EvalResult]:
    """Return the test scores of these weights, as the Hub's model-index has them."""
    return [
        EvalResult(
            task_type=task if "spearman" in tested else "feature-extraction",
            dataset_type=data,
            dataset_name=data,
            dataset_split="test",
            metric_type=_METRIC_IDS.get(name, name.replace(" ", "_")),
            metric_name=f"{metric_title(name)} x 100",
            metric_value=round(value, 4),
        )
        for name, value in tested.items()
    ]


def _summary(model: ModelDescription, layer: int, layout: Layout, *, tuned: bool, changes: Sequence[str]) -> str:
    name = _model_name(model)
    place = name if _is_on_hub(model) else f"the local folder {name}"
    whole = model.whole_parameters or model.parameters
    before, after = whole[-1], model.parameters[layer]
    saved = 1 - after / before if before else 0.0
    blocks = ("alone", "and the first block")[layer] if layer < 2 else f"and the first {layer} blocks"
    if layer and model.blocks is not None:
        left = ", ".join(map(str, model.blocks[:layer]))
        blocks = f"and block{'s' * (layer > 1)} {left} of {len(whole) - 1}"
    behind = [kind for kind in layout.modules if kind != "Pooling"]
    modules = f", with {' and '.join(behind)}{'' if layout.dense else ' as in the base model'}" if behind else ""
    settings = layout.source.settings if layout.source else {}
    similarity, dim = settings.get("similarity_fn_name") or "cosine", settings.get("truncate_dim")
    features = f"the first {dim} of {layout.width} features" if dim else f"{layout.width} features"
    lines = [
        f"- **Base model:** {escaped(place)}, revision {escaped(model.revision)} ({escaped(model.architecture)})",
        f"- **Layer:** {layer} of {model.n_blocks}: the embeddings {blocks}"
        + ("" if model.norm == "none" else ", then the model's final norm"),
        f"- **Parameters:** {after:,} instead of {before:,} ({saved:.1%} less; no pooler, which nothing here uses)",
        *((f"- **Vocabulary:** {tokens_phrase(model.vocabulary)}",) if model.vocabulary else ()),
        f"- **Embedding:** {_pooling(layout)}, {features}{modules}; compared by {similarity}",
        *(() if layout.n_extra is not None else (f"- **Length:** texts are cut at {layout.max_length} tokens",)),
    ]
    if layout.query_prompt != layout.document_prompt:
        each_side = layout.query_prompt, layout.document_prompt
        query, document = (escaped(json.dumps(text, ensure_ascii=False)) for text in each_side)
        lines.append(f"- **Prompts:** {query} before queries (`encode_query`), {document} before documents")
    if layout.prompt:
        prompt = escaped(json.dumps(layout.prompt, ensure_ascii=False))
        lines.append(f"- **Prompt:** {prompt} is put before every text")
    if model.random_init is not None:
        start = "started from" if tuned else "are"
        lines.append(f"- **The weights {start} random numbers** (seed {model.random_init}), not the trained ones")
    elif not tuned:
        lines.append("- **Weights:** those of the base model; not fine-tuned")
    lines += [f"- **Precision:** {layout.dtype}"] if layout.dtype != "float32" else []
    lines += [f"- **Not as in the base model:** {escaped('; '.join(changes))}"] if changes else []
    return "\n".join(lines)


def _pooling(layout: Layout) -> str:
    """Return the pooling in words."""
    if layout.pooled != layout.pooling:
        return f"{layout.pooled} pooling"
    return _POOLING[layout.pooling] if layout.n_extra is None else _IMAGE_POOLING[layout.pooling][0]


def _use(layout: Layout, *, loader: str, padding_invariant: bool) -> str:
    if layout.n_extra is not None:
        embeddings = _IMAGE_POOLING[layout.pooling][1].format(n=layout.n_extra)
        return _USE_IMAGES.format(place=PLACE, loader=loader, embeddings=embeddings)
    code = _USE.format(place=PLACE, batch_size="" if padding_invariant else ", batch_size=1")
    if padding_invariant:
        return code
    return f"{code}\n\nThis architecture mixes padding into its states: give it texts of one length at a time."


def _in_8_bits(files: Sequence[Int8File], *, padding_invariant: bool) -> str:
    lines = []
    for file in files:
        folder, _, name = file.file.partition("/")
        how = f'backend="{folder}", model_kwargs={{"file_name": "{name}"{FLOATS.get(file.backend, "")}}}'
        lines += ["", f"# {file.difference_text}", f'model = SentenceTransformer("{PLACE}", {how})']
    return _IN_8_BITS.format(models="\n".join(lines), alone="" if padding_invariant else ", one text at a time")


def _training(run: FineTuningRun, origin: RunOrigin, runs: Sequence[FineTuningRun], beside: Mapping[str, float]) -> str:
    train, *others = origin.pairs
    rest = f"{' and '.join(f'{n:,}' for n in others)} to choose the epoch and to score"
    if run.protocol.kept_epoch:
        rest = (
            f"those for training and those for validation together, for {counted(run.best_epoch, 'epoch')}, as many "
            f"as validation chose in the search; {others[-1]:,} others to score"
        )
    how = "Truncated first, then fine-tuned"
    if run.weighting is not None:
        how = "Fine-tuned whole, with a loss at every layer, then truncated,"
    about = f"{how} on {escaped(shown_name(origin.task))}: {train:,} examples to train on, {rest}. Seed {run.seed}."
    settings = ((name.replace("_", " "), str(value)) for name, value in to_dict(run.protocol).items())
    parts = ["## Fine-tuning", about, _table(("Protocol", ""), settings), _scores(run, runs)]
    if beside:
        parts.append(_table(("Beside it", "on test"), ((name, f"{value:.2f}") for name, value in beside.items())))
    return "\n\n".join(parts)


def _scores(run: FineTuningRun, runs: Sequence[FineTuningRun]) -> str:
    """Return the scores: of several seeds the mean counts, and those of this checkpoint stand next to it."""
    splits = ("test",) if run.protocol.kept_epoch else ("validation", "test")
    metrics = [(split, name, value) for split in splits for name, value in getattr(run, split).items()]
    if len(runs) < 2:
        rows = ((f"{split} {metric_title(name)}", f"{value:.2f}") for split, name, value in metrics)
        alone = "One seed: the spread over seeds is unknown."
        which = "of this model" if run.protocol.kept_epoch else "of the best epoch"
        return "\n\n".join((_table(("Metric", which), rows), alone))
    header = ("Metric", "mean ± deviation", "interval over seeds", "by seed", f"this checkpoint, seed {run.seed}")
    lines = []
    for split, name, value in metrics:
        scores = seed_scores([getattr(other, split)[name] for other in runs], metric=name)
        line = (
            f"{split} {metric_title(name)}",
            f"{scores.mean:.2f} ± {scores.std:.2f}",
            "{:.2f} to {:.2f}".format(*scores.interval or ()),
            " ".join(f"{score:.2f}" for score in scores.values),
            f"{value:.2f}",
        )
        lines.append(line)
    seeds = ", ".join(str(other.seed) for other in runs)
    which = f"Of the best epoch of each of the seeds {seeds}; the score of this layer is the mean, not one seed's."
    return "\n\n".join((_table(header, lines), which))


def _evidence(finding: Finding, layer: int) -> str:
    other_layer, table = finding.best_layer != layer, finding_table(finding)
    said = [f"{finding.kept} {finding.certainty}", finding.proof_sentence, *filter(None, [finding.expectation])]
    if other_layer:
        said.insert(0, f"Layer {layer} was asked for; the search keeps layer {finding.best_layer}.")
    return "\n\n".join(
        (
            "## What the search says" if other_layer else "## Why this layer",
            *map(escaped, said),
            escaped(f"Layers on {shown_name(finding.task)}:"),
            _table([column.head for column in table.shown], table.lines),
            *map(escaped, table.notes),
        )
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(escaped(cell) if cell != '---' else cell for cell in line)} |" for line in lines)
