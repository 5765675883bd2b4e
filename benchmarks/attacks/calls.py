"""Calls that a user would make from Python, right ones and wrong ones: each works, or ends in one line of ours.

Run it for a table of all; `tests/test_calls.py` makes them one by one.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import AutoModel, AutoTokenizer

import layerprobe as lp
from tests.models import save_tiny
from tests.toy_task import toy_task, toy_task_of

SHORT = lp.Protocol(epochs=1)
TEXTS = ["a b c", "d e f", "g h i", "j k l", "m n o", "a c e"]


@dataclass
class Made:
    """What calls begin from; each is made once, when a call needs it."""

    folder: Path

    @cached_property
    def m(self) -> lp.Model:
        """A model with its own cache."""
        return lp.Model(save_tiny("electra", self.folder / "electra"), device="cpu", cache_dir=self.folder / "cache")

    @cached_property
    def r(self) -> str:
        """A reference by name."""
        return str(save_tiny("bert", self.folder / "bert"))

    @cached_property
    def loaded(self) -> Any:
        """A model and its tokenizer in memory."""
        return AutoModel.from_pretrained(self.r), AutoTokenizer.from_pretrained(self.r)

    texts = cached_property(lambda self: list(dict.fromkeys(self.task.train.texts)))
    frame = cached_property(lambda self: pd.DataFrame(np.random.default_rng(0).normal(size=(12, 3))))
    masked = cached_property(lambda self: np.ma.masked_less(self.frame.to_numpy(), 0))
    task = cached_property(lambda self: toy_task(train=32, validation=16, test=16))
    other = cached_property(lambda self: dataclasses.replace(self.labels, name="labels"))
    labels = cached_property(lambda self: toy_task_of("classification", train=32))
    pairs = cached_property(
        lambda self: pd.DataFrame({"first": TEXTS, "second": TEXTS[::-1], "score": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]})
    )
    array = cached_property(lambda self: np.random.default_rng(0).normal(size=(20, 4)))
    layers = cached_property(lambda self: np.random.default_rng(1).normal(size=(20, 3, 4)))
    embeddings = cached_property(lambda self: lp.extract(self.m, TEXTS))
    embeddings_r = cached_property(lambda self: lp.extract(lp.Model(self.r, cache_dir=self.folder / "cache"), TEXTS))
    scores = cached_property(lambda self: lp.score(self.m, self.task))
    prediction = cached_property(lambda self: lp.predict(self.m, self.task))
    tuned = cached_property(lambda self: lp.finetune(self.m, self.task, [1, 2], seeds=[0], protocol=SHORT))
    finding = cached_property(lambda self: lp.find(self.m, self.task, seeds=2, protocol=SHORT, save_models=True))
    comparison = cached_property(lambda self: lp.compare(self.embeddings, self.embeddings_r))

    @property
    def out(self) -> Path:
        """A folder that is not there."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "out"


Call = Callable[[Made], Any]

RIGHT: dict[str, Call] = {
    "Model(blocks as a text)": lambda x: lp.Model(x.r, blocks="1,2"),
    "predict(texts from a generator)": lambda x: lp.predict(x.m, (text for text in x.task.train.texts)).summary,
    "compare(texts from a generator)": lambda x: lp.compare(x.m, x.r, (text for text in TEXTS)).summary,
    "predict(groups of some of the texts)": lambda x: lp.predict(
        x.m, x.texts, n_texts=16, groups={text: i // 3 for i, text in enumerate(x.texts)}
    ),
    "compare(frames)": lambda x: lp.compare(x.frame, x.frame),
    "finetune(NumPy's numbers)": lambda x: lp.finetune(
        x.m, x.task, np.array([1]), seeds=1, protocol=lp.Protocol(epochs=np.int64(1), batch_size=np.int64(16))
    ),
    "extract(NumPy's numbers)": lambda x: lp.extract(
        lp.Model(x.r, max_length=np.int64(9), random_init=np.int64(3), blocks=np.array([1, 2])), TEXTS
    ),
    "predict(NumPy's numbers)": lambda x: lp.predict(x.m, x.task, n_texts=np.int64(16)),
    "load_task(NumPy's seed)": lambda x: lp.load_task(
        pd.concat([x.pairs.assign(first=x.pairs["first"] + f" {i}") for i in range(8)]), seed=np.int64(4)
    ),
    "extract(model, texts)": lambda x: lp.extract(x.m, TEXTS),
    "extract(model, task)": lambda x: lp.extract(x.m, x.task),
    "extract(model, one column)": lambda x: lp.extract(x.m, x.pairs[["first"]]),
    "extract(model, series)": lambda x: lp.extract(x.m, x.pairs["first"]),
    "extract(device of torch)": lambda x: lp.extract(dataclasses.replace(x.m, device=torch.device("cpu")), TEXTS),
    "extract(dtype of torch)": lambda x: lp.extract(dataclasses.replace(x.m, dtype=torch.float32), TEXTS),
    "extract(loaded, texts)": lambda x: lp.extract(lp.Model(x.loaded, cache_dir=x.m.cache_dir), TEXTS),
    "extract(Model(pooling), texts)": lambda x: lp.extract(
        lp.Model(x.r, pooling="cls", cache_dir=x.m.cache_dir), TEXTS
    ),
    "embeddings.rows(generator)": lambda x: x.embeddings.rows(text for text in TEXTS[2:4]),
    "embeddings.rows(series)": lambda x: x.embeddings.rows(x.pairs["first"].iloc[2:4]),
    "embeddings.layer(NumPy's number)": lambda x: x.embeddings.layer(np.int64(2)),
    "score(model, task)": lambda x: lp.score(x.m, x.task).to_pandas(),
    "score(model, task, split)": lambda x: lp.score(x.m, x.task, split="validation").summary,
    "score(model, tasks)": lambda x: lp.score(x.m, [x.task, x.other]).summary,
    "score(models, task)": lambda x: lp.score([x.m, x.r], x.task).to_pandas(),
    "score(models, labels)": lambda x: lp.score([x.m, x.r], x.labels).summary,
    "save page(scores of models)": lambda x: lp.save(lp.score([x.m, x.r], x.task), x.out.with_suffix(".html")),
    "score(model, labels)": lambda x: lp.score(x.m, x.labels).summary,
    "predict(model, task)": lambda x: x.prediction.summary,
    "predict(model, texts)": lambda x: lp.predict(x.m, TEXTS).summary,
    "predict(model, task, reference)": lambda x: lp.predict(x.m, x.task, reference=x.r).summary,
    "predict(model, task, references)": lambda x: lp.predict(x.m, x.task, reference=[x.r]).summary,
    "find(model, task)": lambda x: x.finding.summary,
    "find(model, task, seeds=range)": lambda x: lp.find(x.m, x.task, seeds=range(2), protocol=SHORT).summary,
    "finetune(layer)": lambda x: lp.finetune(x.m, x.task, 2, seeds=1, protocol=SHORT).summary,
    "finetune(layers)": lambda x: x.tuned.to_pandas(),
    "finetune(layers), its runs": lambda x: [run.layer for run in x.tuned.runs],
    "finetune(finetune)": lambda x: lp.finetune(x.m, x.task, x.tuned, seeds=1, protocol=SHORT).plot(),
    "finetune(prediction)": lambda x: lp.finetune(x.m, x.task, x.prediction, seeds=1, protocol=SHORT),
    "finetune(finding)": lambda x: lp.finetune(x.m, x.task, x.finding, seeds=1, protocol=SHORT),
    "finetune(scan)": lambda x: lp.finetune(x.m, x.task, scan=True, protocol=SHORT).summary,
    "find(model, task, reference)": lambda x: lp.find(x.m, x.task, reference=x.r, seeds=2, protocol=SHORT).summary,
    "compare(models, texts)": lambda x: lp.compare(x.m, x.r, TEXTS).summary,
    "compare(models, task)": lambda x: lp.compare(x.m, x.r, x.task).summary,
    "compare(embeddings)": lambda x: x.comparison.summary,
    "compare(embeddings, array)": lambda x: lp.compare(x.embeddings, np.asarray(x.embeddings_r)).shape,
    "compare(arrays)": lambda x: lp.compare(x.array, x.array).summary,
    "compare(layers)": lambda x: lp.compare(x.layers, x.layers).shape,
    "compare(lists)": lambda x: lp.compare([x.array], [x.array, 2 * x.array]).shape,
    "export(layer)": lambda x: lp.export_model(x.m, x.out, layer=2),
    "export(layer=prediction)": lambda x: lp.export_model(x.m, x.out, layer=x.prediction),
    "export(layer=finding)": lambda x: lp.export_model(x.m, x.out, layer=x.finding),
    "export(layer=finetune)": lambda x: lp.export_model(x.m, x.out, layer=x.tuned),
    "export(finding)": lambda x: lp.export_model(x.finding, x.out),
    "save page(finding)": lambda x: lp.save(x.finding, x.out.with_suffix(".html")),
    "save page(prediction)": lambda x: lp.save(x.prediction, x.out.with_suffix(".html")),
    "save page(comparison)": lambda x: lp.save(x.comparison, x.out.with_suffix(".html")),
    "save page(scores)": lambda x: lp.save(x.scores, x.out.with_suffix(".html")),
    "save page(finetune)": lambda x: lp.save(x.tuned, x.out.with_suffix(".html")),
    "save and load": lambda x: lp.load(lp.save(x.prediction, x.out.with_suffix(".json"))),
    "load_task(frame)": lambda x: lp.load_task(
        pd.concat([x.pairs] * 20, ignore_index=True).assign(
            first=lambda frame: frame["first"] + " " + frame.index.astype(str)
        )
    ),
    "settings(level)": lambda x: _at_level(x),
}
"""What works."""


def _at_level(x: Made) -> str:
    with lp.settings(level=0.8):
        assert lp.compare(x.embeddings, x.embeddings_r).curve.uncertainty.level == 0.8
    return "0.8"


WRONG: dict[str, tuple[Call, str]] = {
    "compare(masked arrays)": (lambda x: lp.compare(x.masked, x.masked), "layer 0 has masked values"),
    "linear_cka(masked array)": (lambda x: lp.linear_cka(x.masked, x.masked), "X has masked values"),
    "cka_interval(no level)": (lambda x: lp.cka_interval(x.frame, x.frame, level=None), "a confidence level between"),
    "cka_interval(missing groups)": (
        lambda x: lp.cka_interval(x.frame, x.frame, groups=[None, *range(11)]),
        "a group for every row, got None in row 0",
    ),
    "predict(split)": (lambda x: lp.predict(x.m, x.task, split="tset"), "split is 'tset', expected one of"),
    "finetune(weighting)": (
        lambda x: lp.finetune(x.m, x.task, scan=True, weighting="equall"),
        "weighting is 'equall', expected one of",
    ),
    "find(against_last)": (lambda x: lp.find(x.m, x.task, against_last=-1), "0 or more, got -1"),
    "load_task(two ratios)": (lambda x: lp.load_task(x.pairs, split_ratios=(0.8, 0.2)), "a ratio for each of train"),
    "embedded_model(objective)": (lambda x: lp.embedded_model("foo"), "objective is 'foo', expected one of"),
    "embedded_task(no pairs)": (
        lambda x: lp.embedded_task(train=0),
        "at least one pair per split, got 0, 500 and 1000",
    ),
    "extract(model, frame)": (lambda x: lp.extract(x.m, x.pairs), "columns first, second, score"),
    "predict(model, frame)": (lambda x: lp.predict(x.m, x.pairs), "columns first, second, score"),
    "extract(model, one text)": (lambda x: lp.extract(x.m, "a b"), "list of texts, got the single text"),
    "embeddings.rows(one text)": (lambda x: x.embeddings.rows("a b c"), "list of texts, got the single text 'a b c'"),
    "embeddings.rows(another text)": (lambda x: x.embeddings.rows(x.pairs["first"].iloc[2:4] + "x"), "'g h ix' is not"),
    "embeddings.layer(2.0)": (lambda x: x.embeddings.layer(2.0), "expected layers as whole numbers"),
    "extract(frame, model)": (lambda x: lp.extract(x.pairs, x.m), "expected"),
    "extract(no such model)": (lambda x: lp.extract("./no-such-model", TEXTS), "no-such-model"),
    "extract(number)": (lambda x: lp.extract(5, TEXTS), "the name of a model"),
    "score(model, name)": (lambda x: lp.score(x.m, "stsb"), "expected a Task, got the text 'stsb'"),
    "score(no models)": (lambda x: lp.score([], x.task), "expected at least one model"),
    "score(model twice)": (lambda x: lp.score([x.m, x.m], x.task), "which are the same"),
    "score(no model in a list)": (lambda x: lp.score([x.m, 3], x.task), "expected"),
    "score(split)": (lambda x: lp.score(x.m, x.task, split="dev"), "split is 'dev', expected one of"),
    "find(model, texts)": (lambda x: lp.find(x.m, TEXTS), "expected a Task"),
    "find(seeds=[7])": (lambda x: lp.find(x.m, x.task, seeds=[7]), "expected a number of seeds"),
    "find(seeds=0)": (lambda x: lp.find(x.m, x.task, seeds=0), "at least one seed"),
    "find(budget)": (lambda x: lp.find(x.m, x.task, budget=15), "a share of the full sweep"),
    "finetune(old order)": (lambda x: lp.finetune(x.m, [1], x.task), "expected a Task"),
    "finetune(text)": (lambda x: lp.finetune(x.m, x.task, "3-1"), "expected a range such as 2-5"),
    "finetune(no such layer)": (lambda x: lp.finetune(x.m, x.task, [9], seeds=1), "expected layers from 0 to 3"),
    "finetune(float16)": (
        lambda x: lp.finetune(lp.Model(x.r, dtype="float16"), x.task, 1, seeds=1),
        "cannot fine-tune in float16",
    ),
    "compare(names)": (lambda x: lp.compare(x.r, x.r), "expected texts or a task to compare models on"),
    "compare(array, model)": (lambda x: lp.compare(x.array, x.r), "expected two arrays"),
    "compare(embeddings, model)": (lambda x: lp.compare(x.embeddings, x.r, TEXTS), "extract both"),
    "compare(layers first)": (lambda x: lp.compare(np.swapaxes(x.layers, 0, 1), x.layers), "pass list"),
    "compare(rows)": (lambda x: lp.compare(x.array, x.array[:10]), "20|10"),
    "export(no layer)": (lambda x: lp.export_model(x.m, x.out), "expected a layer to truncate at"),
    "export(finding without weights)": (
        lambda x: lp.export_model(
            dataclasses.replace(x.finding, weights=dataclasses.replace(x.finding.weights, kept=False)), x.out
        ),
        "saved no weights",
    ),
    "export(two layers)": (lambda x: lp.export_model(x.m, x.out, layer=[1, 2]), "expected one layer"),
    "export(onto the model)": (
        lambda x: lp.export_model(x.m, x.folder / "electra", layer=1, overwrite=True),
        "electra",
    ),
    "save page(text)": (lambda x: lp.save("finding", x.out), "expected a result"),
    "save page(embeddings)": (lambda x: lp.save(x.embeddings, x.out), "expected a result"),
    "Model(pooling)": (lambda x: lp.Model(x.r, pooling="average"), "expected pooling by one of"),
    "Model(device=0)": (lambda x: lp.Model(x.r, device=0), "expected device as a text such as 'auto', got 0"),
    "Model(device=None)": (lambda x: lp.Model(x.r, device=None), "expected device as a text such as 'auto', got None"),
    "Model(max_length)": (
        lambda x: lp.Model(x.r, max_length="128"),
        "expected max_length as a whole number, got '128'",
    ),
    "Model(max_length=32.0)": (lambda x: lp.Model(x.r, max_length=32.0), "max_length as a whole number, got 32.0"),
    "Model(random_init)": (lambda x: lp.Model(x.r, random_init="3"), "expected random_init as a whole number, got '3'"),
    "Model(backend)": (lambda x: lp.Model(x.r, backend=None), "expected backend as a text such as 'torch', got None"),
    "Model(prompt)": (lambda x: lp.Model(x.r, prompt=3), "expected prompt as a text, got 3"),
    "Model(blocks=3)": (lambda x: lp.Model(x.r, blocks=3), r"expected blocks as whole numbers such as .*, got 3"),
    "Model(blocks=1;2)": (
        lambda x: lp.Model(x.r, blocks="1;2"),
        r"expected blocks as whole numbers .* '1;2'",
    ),
    "Protocol(epochs)": (lambda x: lp.Protocol(epochs="3"), "expected epochs as a whole number such as 10, got '3'"),
    "Protocol(epochs=1.0)": (lambda x: lp.Protocol(epochs=1.0), "expected epochs as a whole number such as 10"),
    "Protocol(learning rate)": (lambda x: lp.Protocol(learning_rate=None), "expected learning_rate as a number"),
    "find(budget as a text)": (lambda x: lp.find(x.m, x.task, budget="110%"), "expected a share from 1 % to 100 %"),
    "find(no tolerance)": (
        lambda x: lp.find(x.m, x.task, tolerance=None),
        "tolerance as a number such as 0.5, got None",
    ),
    "Model(empty)": (lambda x: lp.Model(""), "expected the name of a model"),
    "settings(level=95)": (lambda x: lp.settings(level=95).__enter__(), "between 0 and 1"),
    "load_task(nothing)": (lambda x: lp.load_task("no-such-file.csv"), "no-such-file"),
    "load_task(columns)": (lambda x: lp.load_task(x.pairs, columns="a,b,c"), "first, second, score"),
}
"""What is refused, and what the line says."""


def outcome(name: str, made: Made) -> str:
    """Make a call; return worked or refused, or what was wrong about it."""
    call, said = (RIGHT[name], None) if name in RIGHT else WRONG[name]
    try:
        call(made)
    except lp.LayerProbeError as error:
        text = str(error)
        if said is None:
            return f"refused: {text}"
        if "\n" in text:
            return f"more than one line: {text}"
        return "refused" if re.search(said, text) else f"another line: {text}"
    return "worked" if said is None else "silent"


def main() -> int:
    """Make all calls; print what came of each; return how many went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        made, wrong = Made(Path(folder)), 0
        for name in (*RIGHT, *WRONG):
            try:
                found = outcome(name, made)
            except Exception as error:
                found = f"traceback: {type(error).__name__}: {error}"
            good = found == ("worked" if name in RIGHT else "refused")
            wrong += not good
            print(f"{name:36} {found}" if good else f"{name:36} WRONG {found}")
    print(f"{len(RIGHT)} right calls and {len(WRONG)} wrong ones, {wrong} of them not as they should be")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
