"""Bytes flipped, files cut short, exchanged, edited and linked, in every kind of file that layerprobe keeps.

python benchmarks/attacks/bytes.py [--flips 250] [--seed 0]

Each kind is built on the spot from tiny random models, damaged, and read as commands read it. What is read is compared
with what was written: the same, the same and told (or made again, with the same numbers), refused in one line, silent,
or a traceback. Exits with 1 if anything was silent or a traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers

from layerprobe.comparison.compare import compare_all, diagnostics
from layerprobe.encoders.graphs import backend_graph
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import LayerProbeError
from layerprobe.export.run import export_model
from layerprobe.extraction.embed import embed_layers
from layerprobe.extraction.embeddings import extract
from layerprobe.files.atomic import read_kept
from layerprobe.files.serialisation import sealed, to_dict
from layerprobe.finetuning.outcomes import read_outputs
from layerprobe.finetuning.runs import MODEL, load_failure, load_finished, load_saved_run, save_failure
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.dropbench.zoo import ZooEntry, read_zoo, write_zoo
from layerprobe.lab.pretraining.loop import SavedStep
from layerprobe.lab.pretraining.run import ADAPTED, PRETRAINED, adapt_in_store, pretrain
from layerprobe.lab.run import run_recipe
from layerprobe.results.shown import load
from layerprobe.store import store
from layerprobe.tasks.values import TextFile
from tests.export.findings import described, finding_of
from tests.lab.dropbench.zoos import known_zoo
from tests.lab.pretraining.jobs import PROTOCOL as ADAPTATION
from tests.lab.pretraining.jobs import TEXTS as CORPUS
from tests.lab.recipes import PRETRAINING, SMALL
from tests.lab.recipes import study as recipe_of
from tests.models import TEXTS, given, save_tiny
from tests.toy_task import toy_task

OUTCOMES = ("same", "told", "refused", "silent", "traceback")
"""The same numbers without a word; with one; one line of error; other numbers without an error; anything else."""
DAMAGES = ("flip", "cut", "edit")
QUIET = "README.md"
"""The one file that may be edited: nothing reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of file, as it lies in a folder of its own."""

    name: str
    pattern: str
    """Of the files to damage, below the folder."""
    root: Path
    read: Callable[[Path], Any]
    """Reads it below a copy of the folder as a command does: plain values, None where it has to be made again."""
    swaps: tuple[tuple[str, str], ...] = ()
    """Files or folders of one kind to exchange."""
    links: tuple[str, ...] = ()
    """Files or folders to replace by a link out of the folder."""
    share: float = 1.0
    """Of the flips: less where a model mends the damage."""

    def files(self, folder: Path) -> list[Path]:
        """The files to damage."""
        found = sorted(path for path in folder.glob(self.pattern) if path.is_file() and path.name != QUIET)
        assert found, f"{self.name}: nothing matches {self.pattern}"
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of damage."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind and outcome."""
    bad: list[str] = field(default_factory=list)
    """Silent ones and tracebacks."""


class Told(logging.Handler):
    """What is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# ---- what is kept ----------------------------------------------------------------------------------------


def build(home: Path) -> list[Kind]:
    """Make one of everything below `home`, and return how each is read."""
    models = home / "models"
    checkpoints = [resolve(str(save_tiny(name, models / name))) for name in ("bert", "electra")]
    return [
        *_stored(home / "store", checkpoints),
        *_graphs(home / "graphs", checkpoints[0]),
        *_runs(home / "runs", checkpoints[0]),
        *_trained(home / "trained", checkpoints[0]),
        *_loose(home / "loose", checkpoints[0]),
    ]


def _stored(root: Path, checkpoints: list[Any]) -> list[Kind]:
    def options(folder: Path) -> Model:
        return Model(device="cpu", cache_dir=folder)

    texts = [f"{text} {letter}" for letter in "abcdefgh" for text in TEXTS]

    def embed(folder: Path) -> Any:
        both = [extract(given(entry, options(folder)), texts) for entry in checkpoints]
        return [[entry.layer(layer).tolist() for layer in range(entry.n_layers)] for entry in both] + [
            [(entry.stored.directory / "samples.json").read_text(), to_dict(entry.model), entry.warnings]
            for entry in both
        ]

    def results(folder: Path) -> Any:
        first, second = (extract(given(each, options(folder)), texts) for each in checkpoints)
        return to_dict([compare_all(first, [second]), diagnostics(first), diagnostics(second)])

    # several shards of few texts
    store.MIN_SHARD_ROWS = store.MAX_SHARD_ROWS = 20
    embed(root / "embedded")
    shutil.copytree(root / "embedded", root / "compared")
    results(root / "compared")
    entries = sorted(path.relative_to(root / "embedded").as_posix() for path in root.glob("embedded/embeddings/*"))
    shards = sorted(path.name for path in (root / "embedded" / entries[0]).glob("shard-*"))
    kept_results = sorted(
        path.relative_to(root / "compared").as_posix() for path in root.glob("compared/results/diagnostics/*")
    )
    return [
        Kind(
            name="shard",
            pattern="embeddings/*/shard-*",
            root=root / "embedded",
            read=embed,
            swaps=(
                (f"{entries[0]}/{shards[0]}", f"{entries[0]}/{shards[1]}"),
                (f"{entries[0]}/{shards[0]}", f"{entries[1]}/{shards[0]}"),
                (entries[0], entries[1]),
            ),
            links=(entries[0], "embeddings", f"{entries[0]}/{shards[0]}"),
            share=0.4,
        ),
        Kind(name="samples.json", pattern="embeddings/*/samples.json", root=root / "embedded", read=embed, share=0.4),
        Kind(
            name="manifest.json",
            pattern="embeddings/*/manifest.json",
            root=root / "embedded",
            read=embed,
            swaps=((f"{entries[0]}/manifest.json", f"{entries[1]}/manifest.json"),),
            links=(f"{entries[0]}/manifest.json",),
            share=0.4,
        ),
        Kind(
            name="results/",
            pattern="results/*/*.json",
            root=root / "compared",
            read=results,
            swaps=((kept_results[0], kept_results[1]),),
            links=("results", "results/diagnostics", kept_results[0]),
        ),
    ]


def _graphs(root: Path, checkpoint: Any) -> list[Kind]:
    def embed(folder: Path) -> Any:
        encoder = load_encoder(checkpoint, device="cpu")
        model = checkpoint.with_options(device="cpu", cache_dir=folder, backend="onnx")
        graph = backend_graph(encoder, model)
        return embed_layers(encoder, encoder.tokenize(TEXTS), graph=graph).round(4).tolist()

    embed(root)
    (made,) = [path.relative_to(root).as_posix() for path in root.glob("results/graphs/*")]
    return [
        Kind(
            name="graph",
            pattern="results/graphs/*/*",
            root=root,
            read=embed,
            links=(made, "results/graphs"),
            share=0.2,
        )
    ]


def _runs(root: Path, checkpoint: Any) -> list[Kind]:
    task, protocol = toy_task(train=16, validation=16, test=16), Protocol(epochs=1, batch_size=8)
    options = Model(device="cpu", cache_dir=root)
    made = finetune(given(checkpoint, options), task, (1, 2), seeds=(0, 1), protocol=protocol, save_models=True)
    joint = finetune(given(checkpoint, options), task, scan=True, seeds=(0, 1), protocol=protocol)
    directories, joint_directories = (
        list(dict.fromkeys(run.directory for run in found.runs)) for found in (made, joint)
    )
    failures = [directories[0].with_name(f"layer-003-seed-{seed}") for seed in (0, 1)]
    for seed, directory in enumerate(failures):
        directory.mkdir()
        save_failure(directory, f"the loss is nan with seed {seed}")

    def paths(found: list[Path]) -> list[str]:
        return [path.relative_to(root).as_posix() for path in found]

    single, scans, marks = paths(directories), paths(joint_directories), paths(failures)

    def load(folder: Path) -> Any:
        runs = [load_finished(folder / each) for each in (*single, *scans)]
        if None in runs:
            return None
        outputs = [read_outputs(folder / each) for each in (*single, *scans)]
        if None in outputs:
            return None
        return to_dict(runs), [[each.layers, each.validation.tolist(), each.test.tolist()] for each in outputs if each]

    def load_models(folder: Path) -> Any:
        saved = [load_saved_run(folder / each) for each in single]
        return [[to_dict(origin), to_dict(run), _weights(run.directory / MODEL)] for run, origin in filter(None, saved)]

    def load_marks(folder: Path) -> Any:
        found = [load_failure(folder / each) for each in marks]
        return None if None in found else to_dict(found)

    def result_of(names: list[str]) -> tuple[str, str]:
        return f"{names[0]}/result.json", f"{names[1]}/result.json"

    return [
        Kind(
            name="run result.json",
            pattern="runs/*/layer-*/result.json",
            root=root,
            read=load,
            swaps=(result_of(single), (single[0], single[1]), (single[0], single[2])),
            links=(single[0], f"{single[0]}/result.json", Path(single[0]).parent.as_posix()),
        ),
        Kind(
            name="joint result.json",
            pattern="runs/*/falling-*/result.json",
            root=root,
            read=load,
            swaps=(result_of(scans), (scans[0], scans[1])),
            links=(scans[0],),
        ),
        Kind(
            name="outputs",
            pattern="runs/*/*/outputs.safetensors",
            root=root,
            read=load,
            swaps=tuple((f"{a}/outputs.safetensors", f"{b}/outputs.safetensors") for a, b, *_ in (single, scans)),
            links=(f"{single[0]}/outputs.safetensors",),
        ),
        Kind(
            name="run model/",
            pattern="runs/*/*/model/**/*",
            root=root,
            read=load_models,
            swaps=((f"{single[0]}/model", f"{single[2]}/model"),),
            links=(f"{single[0]}/model",),
        ),
        Kind(
            name="failed.json",
            pattern="runs/*/*/failed.json",
            root=root,
            read=load_marks,
            swaps=((f"{marks[0]}/failed.json", f"{marks[1]}/failed.json"),),
        ),
    ]


def _trained(root: Path, checkpoint: Any) -> list[Kind]:
    export_model(str(checkpoint.source), root / "export" / "model", layer=2)
    texts = TextFile(name="texts", texts=CORPUS)
    protocol = replace(ADAPTATION, max_steps=2)

    def adapted(folder: Path) -> Any:
        options = Model(device="cpu", cache_dir=folder)
        made = [adapt_in_store(given(checkpoint, options), texts, protocol=protocol, seed=seed) for seed in (0, 1)]
        return [[_without_times(record), _weights(path)] for path, record in made]

    def pretrained(folder: Path) -> Any:
        _, record = PRETRAINED.check(folder / "model")  # as `pretrain` begins
        return _without_times(record), _weights(folder / "model"), resolve(str(folder / "model")).identity

    def step(folder: Path) -> Any:
        last = ADAPTED.steps(folder / "model", fingerprint="f").last()
        return None if last is None else [to_dict(last[0]), {k: v.tolist() for k, v in last[1].items()}]

    adapted(root / "adapted")
    pretrain(root / "pretrained" / "model", "language", protocol=PRETRAINING.protocol, device="cpu")
    unfinished = ADAPTED.steps(root / "step" / "model", fingerprint="f")
    saved = SavedStep(fingerprint="f", step=3, n_tokens=5, seconds=1.5, training_seconds=1.0, totals={}, metrics=())
    unfinished.path.mkdir(parents=True)
    unfinished.save(3, saved, {"weight": torch.arange(64.0)})
    made = sorted(path for path in root.glob("adapted/adapted/*") if path.is_dir())
    names = [path.relative_to(root / "adapted").as_posix() for path in made]
    return [
        Kind(
            name="export",
            pattern="model/**/*",
            root=root / "export",
            read=lambda folder: [resolve(str(folder / "model")).identity, _weights(folder / "model")],
        ),
        Kind(
            name="adapted model",
            pattern="adapted/*/**/*",
            root=root / "adapted",
            read=adapted,
            swaps=((names[0], names[1]),),
            links=(names[0], "adapted"),
            share=0.2,
        ),
        Kind(name="pretrained model", pattern="model/**/*", root=root / "pretrained", read=pretrained),
        Kind(
            name="saved step", pattern="model.adapting/**/*", root=root / "step", read=step, links=("model.adapting",)
        ),
    ]


def _loose(root: Path, checkpoint: Any) -> list[Kind]:
    gentle = {"gentle": SMALL.budgets["gentle"]}
    run_recipe(recipe_of({"objectives": ("mlm",)}, budgets=gentle), root / "lab")

    def entries(folder: Path) -> Any:
        files = sorted(folder.glob("entries/*.json"))
        found = [read_kept(ZooEntry, file, root=folder) for file in files]
        return to_dict(found) if len(found) == 2 else None

    for name in ("finding", "zoo"):
        (root / name).mkdir(parents=True)
    (root / "finding" / "finding.json").write_bytes(sealed(finding_of(described())))
    write_zoo(known_zoo(), root / "zoo" / "zoo.json")
    names = sorted(path.relative_to(root / "lab").as_posix() for path in root.glob("lab/entries/*.json"))
    shutil.rmtree(root / "lab" / "cache")
    return [
        Kind(
            name="lab entry",
            pattern="entries/*.json",
            root=root / "lab",
            read=entries,
            swaps=((names[0], names[1]),),
            links=("entries", names[0]),
        ),
        Kind(
            name="finding.json",
            pattern="finding.json",
            root=root / "finding",
            read=lambda folder: to_dict(load(folder / "finding.json")),
        ),
        Kind(
            name="zoo.json",
            pattern="zoo.json",
            root=root / "zoo",
            read=lambda folder: to_dict(read_zoo(folder / "zoo.json")),
        ),
    ]


def _weights(folder: Path) -> dict[str, str]:
    from layerprobe.files.atomic import file_sha256

    identity = resolve(str(folder)).identity
    return {**{path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}, **identity}


def _without_times(record: Any) -> Any:
    """A record without what another run of the same training gives other numbers for."""
    return {key: value for key, value in to_dict(record).items() if key not in ("seconds", "metrics", "created")}


# ---- damage ----------------------------------------------------------------------------------------------


def damaged(data: bytes, how: str, chance: random.Random) -> bytes:
    """Bytes with one of them flipped, cut short, or, of JSON, with a number or text that somebody changed."""
    if how == "edit":
        try:
            value = json.loads(data)
        except ValueError:
            return damaged(data, "flip", chance)
        places = list(_leaves(value))
        holder, key = places[chance.randrange(len(places))]
        leaf = holder[key]
        holder[key] = not leaf if isinstance(leaf, bool) else leaf + 7 if isinstance(leaf, int | float) else f"{leaf}x"
        return json.dumps(value, indent=2).encode()
    if how == "cut":
        return data[: chance.randrange(len(data))]
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :]


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, dict | list):
            yield from _leaves(item)
        else:
            yield value, key


def attempt(kind: Kind, folder: Path, truth: Any, what: str, tally: Tally, told: Told) -> None:
    """Read damage, and count what came of it."""
    told.lines.clear()
    lines: list[str] = []
    try:
        value = kind.read(folder)
        outcome = "silent"
        if json.dumps(value) == json.dumps(truth):
            outcome = "told" if told.lines else "same"
        elif value is None and told.lines:
            outcome = "told"
        lines = told.lines
    except LayerProbeError as error:
        lines, outcome = [str(error)], "refused"
    except Exception:  # what is counted here
        lines, outcome = [traceback.format_exc()], "traceback"
    if outcome in ("told", "refused") and any("\n" in line for line in lines):
        outcome = "traceback"
    tally.counts[kind.name, outcome] += 1
    if outcome in ("silent", "traceback"):
        tally.bad.append(f"{kind.name}, {what}: {outcome}\n{''.join(lines)}")


def attack(kind: Kind, *, flips: int, chance: random.Random, tally: Tally, told: Told, place: Path) -> None:
    """Damage a copy of the folder of a kind so many times, exchange and link what it says."""
    folder = place / "copy"

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kind.root, folder, copy_function=os.link)

    fresh()
    truth = kind.read(folder)
    assert truth is not None
    if not json.dumps(kind.read(folder)) == json.dumps(truth):
        raise AssertionError(f"{kind.name} is not read twice alike")
    for _ in range(max(1, round(flips * kind.share))):
        path = chance.choice(kind.files(folder))
        how = chance.choices(DAMAGES, weights=(8, 1, 1))[0]
        data = damaged(path.read_bytes(), how, chance)
        path.unlink()  # it is one with that of the kind's own folder
        path.write_bytes(data)
        attempt(kind, folder, truth, f"{how} of {path.name}", tally, told)
        fresh()
    for first, second in kind.swaps:
        (folder / first).rename(folder / "third")
        (folder / second).rename(folder / first)
        (folder / "third").rename(folder / second)
        attempt(kind, folder, truth, f"{first} exchanged with {second}", tally, told)
        fresh()
    for name in kind.links:
        _attack_by_link(kind, folder, name, truth, tally, told)
        fresh()


def _attack_by_link(kind: Kind, folder: Path, name: str, truth: Any, tally: Tally, told: Told) -> None:
    """Replace something by a link to a folder of somebody else's, in which nothing may change."""
    outside = folder.with_name("outside")
    (folder / name).rename(outside)
    for path in [outside, *outside.rglob("*")] if outside.is_dir() else [outside]:
        if path.is_dir():
            (path / "mine.txt").write_text("mine")
            for manifest in path.glob("manifest.json"):
                manifest.unlink()
                manifest.write_text("{")  # a reason to begin afresh, and to tidy up
    before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    (folder / name).symlink_to(outside, target_is_directory=outside.is_dir())
    attempt(kind, folder, truth, f"{name} as a link", tally, told)
    after = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    if before != after:
        tally.counts[kind.name, "silent"] += 1
        tally.bad.append(f"{kind.name}: what a link {name} leads to was changed")
    if outside.is_dir():
        shutil.rmtree(outside)
    else:
        outside.unlink()


def main() -> int:
    """Attack every kind and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=250, help="Damaged files of a kind, at most.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Kinds whose name has this in it.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("layerprobe").addHandler(told := Told())
    logging.getLogger("layerprobe").propagate = False
    tally, begun = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        home = Path(os.path.realpath(place))
        kinds = [kind for kind in build(home) if arguments.only in kind.name]
        print(f"{'kind of file':<18} {'tried':>6} " + " ".join(f"{outcome:>9}" for outcome in OUTCOMES))
        for kind in kinds:
            chance = random.Random(f"{arguments.seed} {kind.name}")
            attack(kind, flips=arguments.flips, chance=chance, tally=tally, told=told, place=home)
            counts = [tally.counts[kind.name, outcome] for outcome in OUTCOMES]
            print(f"{kind.name:<18} {sum(counts):>6} " + " ".join(f"{count:>9}" for count in counts), flush=True)
    counts = [sum(tally.counts[kind.name, outcome] for kind in kinds) for outcome in OUTCOMES]
    print(f"{'all':<18} {sum(counts):>6} " + " ".join(f"{count:>9}" for count in counts))
    print(f"{time.monotonic() - begun:.0f} s")
    for line in tally.bad[:20]:
        print(line, file=sys.stderr)
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
