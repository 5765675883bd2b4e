"""Does replaced token detection spoil the last layers of a good sentence encoder? One encoder, continued three ways.

    python benchmarks/controlled_pairs.py --model FOLDER --stsb FOLDER --texts FILE --out FOLDER
    python benchmarks/controlled_pairs.py --model FOLDER --texts FILE --out FOLDER --device cpu --jobs 1 --seconds 1e5
        --objectives rtd --steps 2000 --batch 32 --watch 125 250 500 1000 --encoders FOLDER     # only makes encoders

MiniLM as it is; continued with replaced token detection (RTD); and continued with masked language modelling (MLM): on
the same texts, in the same order, with the same tokens masked, for as many steps, at one learning rate. What differs is
what the encoder is trained to output. Both have a fresh head; RTD has a fresh generator of a quarter of the width, too,
which shares the encoder's embeddings, as ELECTRA's does. Then each is

    read      by `predict`, InfoNCE by layer, CKA with the encoder as it was, and zero-shot scores; and at the end by
              all that others choose a layer by
    tuned     truncated and fine-tuned (TMFT) at every layer, or `--layers`, on the STS benchmark, one seed, and two
              more at layers `--again`

in several processes at once. The figures are written to OUT/pairs.json after each, and what every test pair was given
to OUT/outputs.json; `--seconds` ends it with what is there. With `--encoders` the encoders are kept, those that are
there are not made again, an interrupted one goes on, and encoders of the steps to `--watch` are saved beside; without
`--stsb` nothing more is done. `--device cpu --tiny` tries the script in some seconds; `--table FILE` shows the figures
of another time.
"""

import argparse
import dataclasses
import functools
import heapq
import itertools
import json
import logging
import lzma
import multiprocessing
import queue
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rival_readings import READINGS as RIVALS
from torch import nn
from transformers.utils import logging as transformers_logging

from layerprobe.embedded import Language
from layerprobe.encoders.batching import tokenize
from layerprobe.encoders.encoder import Encoder, save_checkpoint
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.files.atomic import new_folder
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.pretraining.loop import SavedStep, Trainer, train
from layerprobe.lab.pretraining.masking import hold_out, tokenize_corpus
from layerprobe.lab.pretraining.models import build_encoder, build_objective, make_masking
from layerprobe.lab.pretraining.values import EncoderSize, PretrainingProtocol
from layerprobe.readings.reading import INFONCE, READINGS
from layerprobe.readings.source import read_curves
from layerprobe.rng import without_autocast
from layerprobe.scoring.score import score_split
from layerprobe.study.predict import DEFAULT_RULE, predict
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from layerprobe.training import SavedSteps
from tests.models import given, save_tiny

AS_IS = "as is"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What all parts are given."""

    model: Path
    stsb: Path | None
    """A folder; None for a few random pairs."""
    texts: Path | None
    """A file of texts, a line each, packed by xz or not; None for sentences of the embedded language."""
    folder: Path
    """For the encoders and the store."""
    device: str
    dtype: str
    """In which encoders are trained: float32 or bfloat16."""
    epochs: int
    """Of fine-tuning."""
    batch: int
    """Texts a step of continued pretraining."""
    rate: float
    """Its peak learning rate."""
    watch: tuple[int, ...]
    """Steps of it after which the encoder is saved, too."""
    views: int
    """Texts that InfoNCE reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One encoder."""

    objective: str
    steps: int = 0
    seed: int = 0
    """Of the order of the texts, masks, dropout, head and generator."""

    @property
    def name(self) -> str:
        """What it is called."""
        return AS_IS if self.objective == AS_IS else f"{self.objective} {self.steps} seed {self.seed}"

    def path(self, setting: Setting) -> Path:
        """Return its checkpoint."""
        return setting.model if self.objective == AS_IS else setting.folder / self.name.replace(" ", "-")


# ---- data --------------------------------------------------------------------------------------------------


def texts_of(setting: Setting) -> list[str]:
    """Return the texts of continued pretraining."""
    if setting.texts is None:
        return list(dict.fromkeys(Language().sentences(200, seed=1)))
    data = setting.texts.read_bytes()
    return (lzma.decompress(data) if setting.texts.suffix == ".xz" else data).decode().splitlines()


@functools.lru_cache(maxsize=1)
def task_of(setting: Setting) -> Task:
    """Return the STS benchmark, or random scores of random pairs."""
    if setting.stsb is not None:
        return load_task(setting.stsb / "en-train.csv")
    texts = list(dict.fromkeys(Language().sentences(400, seed=2)))[:240]
    half = len(texts) // 2
    scores = np.random.default_rng(0).random(half).round(2)
    return load_task({"sentence1": texts[:half], "sentence2": texts[half : 2 * half], "score": scores.tolist()})


@functools.lru_cache(maxsize=1)
def encoder_of(folder: Path, device: str, dtype: str) -> Encoder:
    """Return a loaded encoder."""
    return load_encoder(Model(str(folder), device=device, dtype=dtype))


# ---- the parts, each in a process --------------------------------------------------------------------------


def continued(setting: Setting, arm: Arm) -> Row:
    """Continue the pretraining of the encoder, and save it as it was saved before."""
    if arm.path(setting).is_dir():
        return {"arm": arm.name, "made": "before"}
    start = time.perf_counter()
    encoder = load_encoder(str(setting.model), device=setting.device)
    config: Any = encoder.model.config
    protocol = PretrainingProtocol(
        objective=arm.objective,
        size=EncoderSize(
            n_blocks=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
        ),
        steps=arm.steps,
        batch_size=setting.batch,
        learning_rate=setting.rate,
        dropout=config.hidden_dropout_prob,
        max_length=config.max_position_embeddings,
    )
    sizes = {"vocab_size": config.vocab_size, "pad_id": config.pad_token_id}
    pupil: Any = AsElectra(encoder.model, build_encoder(protocol, **sizes, seed=arm.seed).config)
    objective = build_objective(pupil, protocol, make_masking(protocol, encoder.tokenizer), seed=arm.seed)
    corpus = tokenize_corpus(
        functools.partial(tokenize, encoder.tokenizer, max_length=64, token_types=False), texts_of(setting)
    )
    rows, held_out = hold_out(len(corpus), 0.02, seed=arm.seed)
    autocast = functools.partial(torch.autocast, encoder.device.type, dtype=torch.bfloat16)
    trainer = Watched(
        objective.to(encoder.device),
        corpus,
        protocol,
        total_steps=arm.steps,
        rows=rows,
        held_out=held_out,
        seed=arm.seed,
        device=encoder.device,
        precision=autocast if setting.dtype == "bfloat16" else without_autocast,
        fused=True,
    )

    def save(folder: Path) -> None:
        with new_folder(folder, replace=True) as fresh:
            save_checkpoint(encoder.model, encoder.tokenizer_to_save(), fresh, name=arm.name)

    for step in setting.watch:
        path = arm.path(setting)
        trainer.marks[step] = functools.partial(save, path.with_name(f"{path.name}-after-{step}"))
    unfinished = arm.path(setting).with_suffix(".unfinished")
    unfinished.mkdir(exist_ok=True)
    steps = SavedSteps(unfinished, SavedStep, root=setting.folder, advice="free space", name=arm.name)
    steps.resumed = steps.last()
    train(trainer, steps=steps, checkpoint_every=100)
    save(arm.path(setting))
    shutil.rmtree(unfinished)
    first, *_, last = trainer.metrics
    return {
        "arm": arm.name,
        "texts": len(rows),
        "before": first.held_out,
        "after": last.held_out,
        "trained_s": trainer.training_seconds,
        "seconds": time.perf_counter() - start,
    }


class Watched(Trainer):
    """A trainer that does something after some steps."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.marks: dict[int, Callable[[], None]] = {}
        """What to do after a step."""

    def advance(self) -> None:
        """Take one step."""
        super().advance()
        if self.step in self.marks:
            self.marks[self.step]()


class AsElectra(nn.Module):
    """An encoder where the objectives of the lab expect an ELECTRA model: their heads go on what it puts out."""

    def __init__(self, model: Any, config: Any) -> None:
        super().__init__()
        self.model = model
        self.embeddings = model.embeddings
        self.config = config

    def forward(self, input_ids: Any, attention_mask: Any = None, **_: object) -> Any:
        """Run the encoder; ELECTRA's heads name inputs that not every encoder reads."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)


def read(setting: Setting, arm: Arm) -> Row:
    """Read an encoder without training it."""
    start = time.perf_counter()
    task = task_of(setting)
    options = Model(device=setting.device, dtype="float32", cache_dir=setting.folder / "store")
    model = given(str(arm.path(setting)), options)
    reference = None if arm.objective == AS_IS else given(str(setting.model), options)
    prediction = predict(model, task, reference=reference, rule=DEFAULT_RULE)
    infonce = read_curves(model, task.texts(), [INFONCE], n_altered=setting.views)[INFONCE]
    scores, _ = score_split(model, task, split="test")
    return {
        "arm": arm.name,
        "infonce": infonce.values,
        "infonce_errors": infonce.standard_errors,
        "cka_with_as_is": None if reference is None else prediction.comparison.curve.values,
        "zero_shot_test": scores.scores,
        "recommended": prediction.recommended_layer,
        "flagged": prediction.drop.drop_layers,
        "read": prediction.drop.read,
        "says": prediction.summary,
        "seconds": time.perf_counter() - start,
    }


def rivals(setting: Setting, arm: Arm) -> Row:
    """Read what others choose a layer by, without training: of labels, or of 2,048 texts at most."""
    start = time.perf_counter()
    task = task_of(setting)
    options = Model(device=setting.device, dtype="float32", cache_dir=setting.folder / "store")
    model = given(str(arm.path(setting)), options)
    names = [name for name, reading in READINGS.usable().items() if reading.needs != "reference"]
    texts = np.random.default_rng(0).permutation(sorted(set(task.texts())))[:2048].tolist()
    others = sorted(set(names) - {INFONCE})
    curves = read_curves(model, texts, others, task=task, n_altered=setting.views, others=RIVALS)
    values = {
        name: {"values": curve.values, "first": READINGS[name].first if name in READINGS else 0}
        for name, curve in curves.items()
    }
    return {"arm": arm.name, "curves": values, "seconds": time.perf_counter() - start}


def tuned(setting: Setting, arm: Arm, layer: int, seed: int = 0) -> Row:
    """Fine-tune one layer with one seed."""
    encoder = encoder_of(arm.path(setting), setting.device, setting.dtype)
    task = task_of(setting)
    (run,), outputs = fine_tune(encoder, layer, task, protocol=Protocol(epochs=setting.epochs), seed=seed)
    (tested,) = outputs.test
    return {
        "arm": arm.name,
        "layer": layer,
        "seed": seed,
        "validation": run.validation[run.primary],
        "test": run.test[run.primary],
        "best_epoch": run.best_epoch,
        "epochs": [epoch.validation[run.primary] for epoch in run.epochs],
        "seconds": run.seconds,
        "outputs": None if tested is None else [round(float(value), 4) for value in np.ravel(tested)],
    }


PARTS: dict[str, Callable[..., Row]] = {"continued": continued, "read": read, "rivals": rivals, "tuned": tuned}


def part(name: str, *arguments: Any) -> tuple[str, Row]:
    """Do a part in a process of the pool, quietly; what goes wrong is a row."""
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return name, PARTS[name](*arguments)
    except Exception as error:  # the other parts go on
        traceback.print_exc(file=sys.stdout)
        _, arm, *run = arguments
        return name, {"arm": arm.name, **dict(zip(("layer", "seed"), run, strict=False)), "error": repr(error)[:500]}


# ---- all of it ---------------------------------------------------------------------------------------------


def run(
    setting: Setting, arms: Sequence[Arm], runs: Sequence[tuple[int, int]], *, jobs: int, out: Path, seconds: float
) -> Row:
    """Do all parts, several at a time, until time is up; `runs` are layers and seeds to fine-tune, in their order."""
    start = time.perf_counter()
    device = torch.cuda.get_device_name() if setting.device == "cuda" else "cpu"
    told = {key: value for key, value in dataclasses.asdict(setting).items() if not isinstance(value, Path)}
    figures: Row = {"machine": {"device": device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}}
    figures |= {"setting": told, **{name: [] for name in PARTS}}
    outputs: Row = {}
    done: queue.Queue[tuple[str, Row]] = queue.Queue()
    waiting: list[tuple[int, int, tuple[Any, ...]]] = []  # a heap: what comes first of every encoder, then the second
    running = 0
    order = itertools.count()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:  # at its end, processes end

        def ask(rank: int, *arguments: Any) -> None:
            heapq.heappush(waiting, (rank, next(order), arguments))

        def examine(arm: Arm) -> None:
            if setting.stsb is None and setting.texts is not None:
                return
            ask(0, "read", setting, arm)
            for rank, (layer, seed) in enumerate(runs):
                ask(rank, "tuned", setting, arm, layer, seed)
            ask(len(runs), "rivals", setting, arm)

        for arm in arms:
            if arm.objective != AS_IS:
                ask(-1, "continued", setting, arm)
        examine(Arm(objective=AS_IS))
        by_name = {arm.name: arm for arm in arms}
        while waiting or running:
            while waiting and running < jobs:
                pool.apply_async(part, heapq.heappop(waiting)[2], callback=done.put)
                running += 1
            try:
                name, row = done.get(timeout=max(0.1, seconds - (time.perf_counter() - start)))
            except queue.Empty:
                print(f"ended after {seconds:.0f} s, {len(waiting) + running} parts not done")
                break
            running -= 1
            if (values := row.pop("outputs", None)) is not None:
                key = f"{row['layer']} seed {row['seed']}" if row["seed"] else row["layer"]
                outputs.setdefault(row["arm"], {})[key] = values
            figures[name].append(row)
            print(f"{time.perf_counter() - start:5.0f} s  {name}  {short(row)}", flush=True)
            if name == "continued" and "error" not in row:
                examine(by_name[row["arm"]])
            figures["seconds"] = time.perf_counter() - start
            (out / "pairs.json").write_text(json.dumps(figures, indent=1))
            (out / "outputs.json").write_text(json.dumps(outputs))
    return figures


def short(row: Row) -> str:
    """Return a row in a line."""
    cells = ((key, value) for key, value in row.items() if key not in ("epochs", "read", "infonce_errors", "curves"))
    return ", ".join(f"{key} {_number(value)}" for key, value in cells)


def _number(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_number(number)}" for key, number in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_number, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def table(figures: Row) -> str:
    """Return a row an arm: TMFT by layer, and what was read."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in figures["read"] + figures["tuned"]):
        runs: dict[int, list[float]] = {}
        for row in figures["tuned"]:
            if row["arm"] == arm and "test" in row:
                runs.setdefault(row["layer"], []).append(row["test"])
        scores = (f"{layer}:" + "/".join(f"{score:.2f}" for score in runs[layer]) for layer in sorted(runs))
        lines.append(f"{arm}: TMFT " + " ".join(scores))
        for row in figures["read"]:
            if row["arm"] == arm and "infonce" in row:
                lines += [f"  {key} {_number(row[key])}" for key in ("zero_shot_test", "infonce", "cka_with_as_is")]
                lines.append(f"  first {row['recommended']}, flagged {_number(row['flagged'])}: {row['says']}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--stsb", "--texts", "--out", "--table"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--encoders", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--objectives", nargs="+", default=["rtd", "mlm"])
    parser.add_argument("--watch", type=int, nargs="*", default=[])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--layers", type=int, nargs="+", help="to fine-tune, in this order; all, from the last")
    parser.add_argument("--again", type=int, nargs="*", default=[], help="layers to fine-tune with seeds 1 and 2, too")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--views", type=int, default=1024)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600.0)
    asked = parser.parse_args(arguments)
    if asked.table:
        print(table(json.loads(asked.table.read_text())))
        return 0
    stsb = asked.stsb or asked.encoders
    if asked.out is None or not (asked.tiny or (asked.model and stsb and asked.texts)):
        parser.error("expected --out, and --model, --texts and --stsb or --encoders, or --tiny")
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = temporary if asked.encoders is None else asked.encoders.resolve()
        Path(folder).mkdir(parents=True, exist_ok=True)
        setting = Setting(
            model=save_tiny("bert", Path(folder) / "tiny") if asked.tiny else asked.model.resolve(),
            stsb=asked.stsb and asked.stsb.resolve(),
            texts=None if asked.tiny else asked.texts.resolve(),
            folder=Path(folder),
            device=asked.device,
            dtype="float32" if asked.tiny else asked.dtype,
            epochs=1 if asked.tiny else asked.epochs,
            batch=8 if asked.tiny else asked.batch,
            rate=asked.rate,
            watch=tuple(asked.watch),
            views=32 if asked.tiny else asked.views,
        )
        steps = [2] if asked.tiny else asked.steps
        n_blocks = json.loads((setting.model / "config.json").read_text())["num_hidden_layers"]
        layers = asked.layers or range(n_blocks, -1, -1)  # the longest first
        runs = [(layer, 0) for layer in layers] + [(layer, seed) for seed in (1, 2) for layer in asked.again]
        arms = [
            Arm(objective=objective, steps=n, seed=seed)
            for seed, n, objective in itertools.product(asked.seeds, sorted(steps, reverse=True), asked.objectives)
        ]
        figures = run(setting, arms, runs, jobs=asked.jobs, out=asked.out, seconds=asked.seconds)
    print(table(figures))
    return int(any("error" in row for name in PARTS for row in figures[name]))


if __name__ == "__main__":
    sys.exit(main())
