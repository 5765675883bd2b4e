"""Research: layerprobe lab run, bench, adapt, pretrain and reproduce."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from layerprobe.checks import LEVEL, check_seeds
from layerprobe.lab.pretraining.values import OBJECTIVES, SIZES, AdaptationProtocol, EncoderSize, PretrainingProtocol
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group, complete, option
from layerprobe_cli.shell import Call, Done, PageCall, new_folder

if TYPE_CHECKING:
    from layerprobe.tasks.values import TextFile


def run(
    call: PageCall,
    file: Annotated[Path, typer.Argument(metavar="RECIPE.toml")],
    out: Path | None = None,
    dry_run: bool = False,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    ray: o.Ray = None,
    retry_failed: bool = False,
    level: o.Level = LEVEL,
    device: o.Device = "auto",
    cache_dir: o.CacheDir = None,
) -> Done:
    r"""Pretrain, adapt, fine-tune and average models by a recipe.

    The file names \[\[models]], or pretrains small ones in its first \[\[step]]; further steps adapt = "texts.txt" and
    tune = "words", one after the other; \[\[tasks]], on which every model is fine-tuned at every layer with every seed,
    under each \[budget.NAME]; and last steps that average = "layers". Keys are options of `layerprobe lab pretrain`,
    `lab adapt` and `finetune`, with underscores. It says what each objective changes, what the first steps add, how far
    layers moved by CKA, and what averages gain. Models whose objective is known become a zoo for `layerprobe lab
    bench`. What is done is not done again.

    Example:  [bold]layerprobe lab run words-then-stsb.toml --report words.html[/bold]

    Args:
        file: The recipe; research/lab.md describes its keys.
        out: The folder of pretrained models and of zoo.json. By default the file's name in this folder.
        dry_run: Print the steps and what is stored of them.
        workers: Processes that share the work. By default 1; with --ray one per GPU, else one per node.
        retry_failed: Make runs again that are marked as failed.
    """
    from layerprobe.lab.recipe import load_recipe
    from layerprobe.lab.run import plan_recipe, run_recipe

    settings = load_recipe(file)
    options = dataclasses.replace(settings.options, cache_dir=cache_dir)
    if "device" in call.given("device"):
        options = dataclasses.replace(options, device=device)
    settings = dataclasses.replace(settings, options=options)
    if dry_run:
        call.stop_at(plan_recipe(settings, out))
    return Done(result=run_recipe(settings, out, workers=workers, ray=ray, retry_failed=retry_failed))


def bench(
    call: PageCall,
    zoo: Annotated[list[Path] | None, typer.Argument(metavar="[ZOO.json]...")] = None,
    tuned: bool = False,
    searched: bool = False,
    unseen: bool = False,
    budget: Annotated[list[str] | None, typer.Option("--budget", "-b")] = None,
    entry: Annotated[list[str] | None, typer.Option("--entry", "-e", metavar="PACKAGE:STRATEGY")] = None,
    level: float = LEVEL,
) -> Done:
    """Score strategies that choose a layer, on models whose best layer is known.

    Strategies that train are simulated on recorded runs, and pay for each run that they use. Regret is the test score
    of the best layer less that of the chosen one, x 100; cost is the share of the paper's sweep, every layer with five
    seeds. The parameters of a rule are tuned on the other families than the one it is scored on. The best rule is also
    chosen on the other families, so that its scores are not those of the luckiest of many rules.

    Example:  [bold]layerprobe lab bench --budget converged --report dropbench.html[/bold]

    Args:
        level: Confidence level of the intervals.
        zoo: Models whose drops are known from fine-tuning, as `layerprobe lab run` writes them. Repeat for further
            files. By default the zoos that come with layerprobe.
        tuned: Score the rules as `predict` uses them, tuned on the zoos that come with layerprobe: on the models of
            ZOO.json, or on models that were kept out of the tuning.
        searched: Also score searches, on scanned models of 6 to 12 blocks that come with layerprobe with the outputs of
            their runs. Rules are those of --tuned.
        unseen: With --searched: leave out the 20 of 40 encoders that rules were tuned on, with other pairs.
        budget: Budget of fine-tuning. Repeat for several. By default all.
        entry: Also score a strategy of another package, a function of a Trial. Repeat for several. The rules of entry
            are in research/contest.md.
    """
    from layerprobe.lab.dropbench.bench import bench_predictors, tuned_rules, unfitted_rules
    from layerprobe.lab.dropbench.strategies import load_entry, training_strategies
    from layerprobe.lab.dropbench.zoo import read_kept_out, read_searched, read_zoo

    if unseen and not searched:
        raise typer.BadParameter("expected --searched with --unseen")
    if searched and zoo:
        raise typer.BadParameter("expected files or --searched, got both")
    strategies = [*map(load_entry, entry or ()), *training_strategies()]
    tuned = tuned or searched
    if tuned and not zoo:
        models = read_searched(unseen=unseen) if searched else read_kept_out()
    else:
        models = read_zoo(*(zoo or ()))
    rules = [*tuned_rules(), *unfitted_rules(models.entries)] if tuned else None
    result = bench_predictors(models, rules=rules, strategies=strategies, budgets=budget or ())
    n_known = len(models.entries) - len(read_searched(unseen=True).entries) if searched else 0
    notes = ["rules with parameters were tuned on the other families"]
    if tuned:
        notes = ["the rules were tuned on the zoos that come with layerprobe"]
    if n_known:
        notes += [f"{n_known} of these encoders are there, too, fine-tuned on other pairs: --unseen leaves them out"]
    return Done(result=result, notes=notes)


def adapt(
    call: Call,
    model: o.Loading,
    protocol: Annotated[AdaptationProtocol, Group("Training", AdaptationProtocol)],
    texts: list[Path],
    out: Annotated[Path, typer.Option("--out", "-o", callback=new_folder)],
    column: o.TextColumn = None,
    seed: Annotated[int, option("Training", min=0)] = 0,
    evaluate_every: Annotated[int | None, option("Training", min=1)] = None,
    checkpoint_every: Annotated[int, option("Training", min=1)] = 50,
    overwrite: bool = False,
) -> Done:
    """Continue masked-language-model pretraining on texts.

    This is domain-adaptive pretraining. It writes an ordinary checkpoint, which any other command takes as the model.

    Example:  [bold]layerprobe lab adapt google/electra-base-discriminator --texts sentences.txt -o adapted[/bold]

    Args:
        texts: Texts: one per line in a .txt or .txt.gz file, or a table. Repeat for further files.
        out: The folder to write.
        seed: Seed of held-out texts, order, masking, dropout and fresh weights.
        evaluate_every: Steps between evaluations. By default one epoch.
        checkpoint_every: Steps between checkpoints; an interrupted run continues from the last one.
        overwrite: Replace an adapted model at OUT.
    """
    from layerprobe.lab.pretraining.run import adapt as adapt_model
    from layerprobe.tasks.loading import load_corpus

    corpus = load_corpus(texts, columns=column)
    (checkpoint,) = o.resolved(model)
    adaptation = adapt_model(
        checkpoint,
        corpus,
        out,
        protocol=protocol,
        seed=seed,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
    )
    return Done(result=adaptation, files={"Folder": out})


_OF_SIZE = Annotated[int | None, typer.Option(show_default="that of --size")]
_SHAPE = {
    "n_blocks": Annotated[int | None, typer.Option("--blocks", show_default="that of --size", help="Blocks.")],
    "hidden_size": _OF_SIZE,
    "heads": _OF_SIZE,
    "intermediate_size": Annotated[int | None, typer.Option(show_default="4 x the hidden size")],
}


def _size(size: str = "mini", **shape: int) -> EncoderSize:
    if "hidden_size" in shape:
        shape.setdefault("intermediate_size", 4 * shape["hidden_size"])
    return dataclasses.replace(SIZES[size], **shape)


_SIZE = Annotated[
    Literal["tiny", "mini", "small"],
    typer.Option(help="8 blocks of 96 features, 8 of 128, or 12 of 256; all with 4 heads."),
]
Shape = Annotated[
    EncoderSize, Group("Model", EncoderSize, _SHAPE, defaults=dict.fromkeys(_SHAPE), make=_size, size=_SIZE)
]


_OBJECTIVE = option(
    "", metavar="NAME", autocompletion=complete(lambda: OBJECTIVES), help="What the encoder is trained for: {names}."
)
Training = Annotated[
    PretrainingProtocol,
    Group(
        "Training",
        PretrainingProtocol,
        {
            "objective": _OBJECTIVE,
            **dict.fromkeys(("generator_size", "dropout"), option("Model")),
            **dict.fromkeys(("vocab_size", "max_length", "packed", "held_out"), option("Data")),
        },
        without=("size", "random_share", "kept_share"),
    ),
]


def pretrain(
    call: Call,
    out: Annotated[Path, typer.Argument(callback=new_folder)],
    corpus: list[str],
    shape: Shape,
    protocol: Training,
    column: o.TextColumn = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: o.Device = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    evaluate_every: Annotated[int | None, typer.Option(min=1)] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1)] = 250,
    overwrite: bool = False,
) -> Done:
    """Pretrain a small encoder from scratch.

    The objective is that of BERT, of ELECTRA, one between them, or one of your own package. With the same seed and
    corpus, all objectives start from the same weights and see the same batches with the same tokens masked. It writes
    an ordinary checkpoint, which any other command takes as the model or the reference; a generator is in its folder
    [bold]generator[/bold].

    Example:  [bold]layerprobe lab pretrain rtd --objective rtd --corpus language --steps 2000[/bold]

    Args:
        out: The folder to write.
        corpus: [bold]language[/bold], the embedded one, or texts: one per line in a .txt or .txt.gz file, a table, or
            the hub id of a data set. Repeat for further ones.
        seed: Seed of weights, order, masking, sampling and dropout.
        dtype: Precision; auto takes bfloat16 on CUDA, where the hardware has it.
        evaluate_every: Steps between evaluations. By default a twentieth of all, at least 50.
        checkpoint_every: Steps between checkpoints; an interrupted run continues from the last one.
        overwrite: Replace a pretrained model at OUT.
    """
    protocol = dataclasses.replace(protocol, size=shape)

    from layerprobe.lab.pretraining.run import pretrain as pretrain_model

    pretraining = pretrain_model(
        out,
        _texts(corpus, column),
        protocol=protocol,
        seed=seed,
        device=device,
        dtype=dtype,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
    )
    generator = out / "generator"
    return Done(result=pretraining, files={"Folder": out} | ({"Generator": generator} if generator.is_dir() else {}))


def _texts(corpus: list[str], column: str | None) -> TextFile | Literal["language"]:
    if corpus == ["language"]:  # a file of that name is ./language
        if column is not None:
            raise typer.BadParameter("expected no --column with --corpus language")
        return "language"
    from layerprobe.tasks.loading import load_corpus

    return load_corpus(corpus, columns=column)


def _experiment_names() -> Iterable[str]:
    from layerprobe.lab.reproduction import experiments

    return experiments()


def reproduce(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete(_experiment_names))],
    dry_run: bool = False,
    seeds: o.Seeds = "5",
    models: Annotated[str | None, typer.Option(metavar="ID[=OTHER],...")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t")] = None,
    words: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
    corpus: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    device: o.Device = "auto",
    cache_dir: o.CacheDir = None,
) -> Done:
    """Repeat an experiment of arXiv 2402.13130.

    The paper's figures are printed beside ours; finished runs are not repeated. table2, pareto: STSB at the layers of
    Table 2; pareto adds which models no smaller one beats. table1: TMFT alone, with --words after word similarity, with
    --corpus after domain adaptation. figure2a: every layer of ELECTRA's base discriminator. figure3: CKA with BERT,
    without training. mrpc, sick, ko, de, es: the best and the last layer. random: random weights.

    Example:  [bold]layerprobe lab reproduce figure2a --dry-run[/bold]

    Args:
        name: Experiment, such as table2. All are listed above.
        dry_run: Print what would run, without loading a model or using the network.
        models: Run only these models of the experiment, each itself or with another hub id or folder instead. By
            default all.
        task: A copy of the data. By default the data set on the Hub, which sick and ko do not have.
        words: Files of scored word pairs, for table1: word similarity first, then TMFT.
        corpus: Texts, for table1: domain adaptation first, then TMFT. Given again: further files.
    """
    from layerprobe.encoders.model import Model
    from layerprobe.lab.reproduction import FirstSteps, experiment, plan_experiment, run_models
    from layerprobe.lab.reproduction import reproduce as reproduce_experiment
    from layerprobe.tasks.values import TaskSettings

    chosen = experiment(name)
    in_place = _parse_models(models)
    listed = check_seeds(seeds)
    data: FirstSteps = {
        "word similarity": [str(words)] if words else [],
        "domain adaptation": list(map(str, corpus or ())),
    }
    if dry_run:
        call.stop_at(plan_experiment(chosen, run_models(chosen, in_place), seeds=listed, data=data))
    source = task or chosen.data_hub_id
    if source is None:
        raise typer.BadParameter(f"expected --task with a copy of {chosen.data}, which is not read from the Hub")

    done = reproduce_experiment(
        name,
        TaskSettings(source=source, kind=chosen.kind),
        models=in_place,
        data=data,
        seeds=listed,
        options=Model(device=device, cache_dir=cache_dir),
    )
    return Done(result=done)


def _parse_models(models: str | None) -> dict[str, str] | None:
    """Return what `ID,ID=OTHER` says: a model of the paper to what is run in its place."""
    if models is None:
        return None
    pairs = [part.strip().partition("=") for part in models.split(",")]
    if not all(model and (other or not equals) for model, equals, other in pairs):
        raise typer.BadParameter(f"expected ID or ID=OTHER, joined by commas, for --models, got {models!r}")
    return {model: other or model for model, _, other in pairs}
