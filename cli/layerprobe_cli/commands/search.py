"""layerprobe search init | ask | tell | answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError
from layerprobe.files.inputs import read_document, text_lines
from layerprobe.files.serialisation import parse_json
from layerprobe.results.table import Column, Table
from layerprobe.search.ask import LayerSearch
from layerprobe.search.values import SEEDS, TOLERANCE, SearchAnswer
from layerprobe_cli import options as o
from layerprobe_cli.shell import Call, Done

OF = "layerprobe.search.ask:LayerSearch"
File = Annotated[Path, typer.Argument(metavar="SEARCH.json", help="The file of the search.")]


def search_init(
    call: Call,
    path: File,
    blocks: int,
    tolerance: float = TOLERANCE,
    budget: Annotated[str | None, {"metavar": "SHARE"}] = None,
    seeds: Annotated[int, {"min": 1}] = SEEDS,
    readings: Annotated[Path | None, {"metavar": "FILE.json"}] = None,
    start: Annotated[int | None, {"min": 0}] = None,
    first_layer: Annotated[int, {"min": 0}] = 0,
    folds: Annotated[int, {"min": 1}] = 1,
    level: o.Level = LEVEL,
) -> Done:
    """Begin a search for the layer to keep, with a trainer of your own.

    Example:  [bold]layerprobe search init search.json --blocks 12[/bold]

    Args:
        blocks: Blocks of the whole model; layers count from 0 to this.
        readings: The JSON that `layerprobe readings` printed, whose InfoNCE says where to look first.
    """
    cost: dict[str, Any] = {"tolerance": tolerance, "budget": budget, "seeds": seeds}
    read = None if readings is None else _readings(readings)
    search = LayerSearch(
        path, n_blocks=blocks, readings=read, start=start, first_layer=first_layer, folds=folds, **cost
    )
    return Done(result={"search": str(path), "next": search.outlook}, parts=[f"{path}: {search.outlook}"])


def search_ask(
    call: Call,
    path: File,
    runs: Annotated[int, {"flags": ("--runs", "-n"), "min": 1}] = 1,
    worker: str | None = None,
) -> Done:
    """Print which layer to train next, and with which seed.

    A line a run, such as `6 0`, and none where the search is over. Several processes may ask at once: each gets another
    run.

    Example:  [bold]layerprobe search ask search.json[/bold]

    Args:
        runs: As many at most, to be trained side by side.
        worker: A name of the caller: a job that was killed and asks again gets the run that it had.
    """
    search = LayerSearch(path)
    given = search.ask(runs, worker=worker)

    def undo() -> None:
        for run in () if worker else given:  # a worker asks again
            search.release(run.layer, run.seed)

    return Done(
        result=[{"layer": layer, "seed": seed} for layer, seed in given],
        parts=[f"{layer} {seed}" for layer, seed in given],
        notes=() if given else (search.outlook,),
        undo=undo,
    )


def search_tell(
    call: Call,
    path: File,
    layer: Annotated[int, typer.Argument(help="That was trained.", min=0)],
    seed: Annotated[int, typer.Argument(help="It was trained with.", min=0)],
    score: Annotated[float | None, {"argument": True}] = None,
    items: Annotated[Path | None, {"metavar": "FILE"}] = None,
    failed: bool = False,
    release: bool = False,
) -> Done:
    """Add what a run scored: one number, one an item, or that it failed.

    Example:  [bold]layerprobe search tell search.json 6 0 0.831[/bold]

    Args:
        score: The metric, higher is better, from -1 to 1.
        items: A text file with its value of each validation item, one a line, in the same order in all runs.
        failed: The run gave no score.
        release: Give the run back: it was not made, and may come again.
    """
    if (score is not None) + (items is not None) + failed + release != 1:
        raise typer.BadParameter("expected a score, --items FILE, --failed or --release, one of them")
    search = LayerSearch(path)
    if release:
        search.release(layer, seed)
    else:
        search.tell(layer, seed, score if items is None else _numbers(items))
    return Done(result={"search": str(path), "next": search.outlook}, parts=[search.outlook])


def search_answer(call: Call, path: File) -> Done:
    """Print which layer to keep, how sure that is, and why the search stopped.

    Example:  [bold]layerprobe search answer search.json[/bold]
    """
    answer = LayerSearch(path).answer()
    return Done(result=answer, parts=[answer.sentence, "", _table(answer)])


def _table(answer: SearchAnswer) -> Table:
    columns: tuple[tuple[str, str, Any], ...] = (
        ("layer", "", ""),
        ("runs", "", lambda count: str(count or "")),
        ("mean", "expected", ".1f"),
        ("interval", f"{answer.settings.level:.0%}", ".1f"),
        ("chance_best", "", ".0%"),
        ("chance_within", f"within {answer.settings.tolerance:g}", ".0%"),
    )
    made = (
        Column(name, [getattr(layer, name) for layer in answer.layers], title, form, interval=name == "interval")
        for name, title, form in columns
    )
    return Table(columns=tuple(made), title="Search")


def _readings(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(read_document(path))
        return {name: curve["values"] for name, curve in data["readings"].items()}
    except (DataError, KeyError, TypeError, AttributeError):
        raise DataError(f"expected {path} as `layerprobe readings MODEL --texts FILE --json` printed it") from None


def _numbers(path: Path) -> list[float]:
    numbers = []
    for number, line in text_lines(path):
        try:
            numbers.append(float(line))
        except ValueError:
            raise DataError(f"expected a number in line {number} of {path}, got {line.strip()!r:.60}") from None
    return numbers
