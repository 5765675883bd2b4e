"""layerprobe probe, whose settings need NumPy."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL
from layerprobe.encoders.model import Model
from layerprobe.probing.values import ProbeSettings
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group, option
from layerprobe_cli.shell import Done, PageCall, new_folder

Embeddings = Annotated[
    Model,
    o.model_group(
        o.EXTRACTION,
        typer.Argument(
            metavar="EMBEDDINGS|MODEL",
            help="Embeddings of every layer: .npy, .npz or .safetensors (samples, layers, features), one array per "
            "layer, or a folder with one file per layer. With --task a model: hub id, id@revision, or a local folder.",
        ),
    ),
]


def probe(
    call: PageCall,
    embeddings: Embeddings,
    source: o.Given,
    settings: Annotated[ProbeSettings, Group("Probing", ProbeSettings)],
    targets: Annotated[Path | None, typer.Argument()] = None,
    groups: Annotated[str | None, option("Probing", metavar="FILE[:COLUMN]")] = None,
    targets_are: Annotated[
        Literal["scores", "classes", "labels", "pairs", "queries"] | None, option("Probing", metavar="KIND")
    ] = None,
    target: Annotated[str | None, option("Probing", metavar="COLUMN")] = None,
    scoring: Annotated[str | None, option("Probing", metavar="METRIC")] = None,
    weighted_sum: Annotated[bool | None, option("Probing")] = None,
    weighted_mean: Annotated[bool, option("Probing", "--weighted-mean")] = False,
    out: Annotated[Path | None, option("Report", "--out", "-o", callback=new_folder)] = None,
    overwrite: bool = False,
    level: o.Level = LEVEL,
) -> Done:
    """Choose the layer of frozen embeddings to use, of any model.

    Probes are fitted across folds, with penalties chosen inside each fold; pairs and queries are compared by cosine.
    The result is the best layer, all layers that may be the best, the smallest within the tolerance, and whether a
    weighted sum of the layers is better.

    Example:  [bold]layerprobe probe embeddings.npy proteins.csv --target stability --groups proteins.csv:family[/bold]

    Example:  [bold]layerprobe probe google-bert/bert-base-cased -t stsb[/bold]

    Args:
        targets: Scores, classes or labels in the order of the rows: .csv, .tsv or .parquet with a column target, label
            or score, .npy, or .txt with one per line. Columns first,second,score are pairs of rows; query,document are
            rows to find and, with gain, how relevant they are. By default labels in the file of the embeddings.
        groups: Groups that are never split between folds, one per row: speakers, documents, protein families.
        targets_are: Kind of targets: scores, classes, labels, pairs or queries. By default detected.
        target: Column of the targets; a,b,c are labels. By default detected.
        scoring: Metric that compares layers, one of those of the targets, such as r2 or spearman. By default the first
            one.
        weighted_sum: Also compare a learned weighted sum of the layers, where probes are fitted. By default if the
            embeddings have at most 2^30 numbers.
        weighted_mean: Compare a learned weighted mean of the layers instead, with one scale per layer, not per feature.
        out: Also export this weighted mean as a model to this folder.
        overwrite: Replace an earlier export at --out.
    """
    from layerprobe.comparison.arrays import NAMED
    from layerprobe.export.folder import check_target

    with_labels = Path(embeddings.name).suffix in NAMED
    if source is not None if targets is not None else source is None and not with_labels:
        raise typer.BadParameter("expected EMBEDDINGS and TARGETS, or a model with --task")
    if source and (groups or targets_are or target):
        raise typer.BadParameter("expected no --groups, --target and --targets-are with --task, which says all of that")
    if source is None:
        call.refuse(call.given(*o.TASK, "out", "overwrite"), "without --task")
    task = o.load(source) if source else None
    probed: Any = embeddings.name
    if out is not None:
        check_target(out, overwrite=overwrite)
    if task is not None:
        (probed,) = o.resolved(embeddings)
        call.data(probed, task)
    result = lp.probe(
        probed,
        targets if task is None else task,
        groups=groups,
        kind=targets_are,
        column=target,
        scoring=scoring,
        cv=settings.folds,
        foldings=settings.foldings,
        random_state=settings.seed,
        tolerance=settings.tolerance,
        weighted_sum=weighted_sum,
        weighted_mean=weighted_mean or out is not None,
    )
    exported = out and lp.export_model(probed, out, weights=result, overwrite=overwrite)
    is_cut = result.model is not None and not result.model.read
    words = "export", embeddings.name, f"layer-{result.best_layer}", "--layer", result.best_layer
    return Done(
        result=result,
        warnings=(*result.warnings, *(exported.warnings if exported else ())),
        files={"Folder": out} if exported else {},
        steps=call.step("truncate", *words, without=o.EXTRACTION) if is_cut and not result.on_floor else (),
    )
