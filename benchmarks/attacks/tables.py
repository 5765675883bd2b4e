"""Malformed tables, settings and studies, bombs, formulas, pipes and devices, all through the command line.

    python benchmarks/attacks/tables.py [--only REGEX] [-v]

Prints how many were tried, survived (one clear line and an exit code that is not 0, or the right result), went through
in silence, or ended in a traceback; exits with 1 if there is any of the last two. Takes about two minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import decimal
import gzip
import io
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow
from layerprobe_cli.main import app
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2]))

from layerprobe.files.serialisation import to_json
from layerprobe.lab.dropbench.zoo import SHIPPED
from tests.images import save_towers
from tests.models import save_tiny
from tests.report.conftest import FINDINGS

SECONDS, MEMORY = 60, 3 * 2**30
"""What an attack may take; peak resident memory in bytes."""
FLIPS = 25
"""Mutated copies of each valid file."""
GOOD = "".join(f"{'abcdefgh'[i % 8]} b,{'hgfedcba'[i % 7]} c,{i % 6}\n" for i in range(40))
FORMULA = "=cmd|' /C calc'!A0"
BOUNDED = ("--device", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A command on an input that means harm or is broken."""

    name: str
    """For the table."""
    arguments: tuple[str | Path, ...]
    """Of the command line."""
    bomb: bool = False
    """Whether it runs in a process of its own, whose time and memory are measured."""
    right: Callable[[str], bool] | None = None
    """Whether the output is right; None where the command has to refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an attack."""

    code: int | None
    """Of the exit; None where it ended in a traceback or hung."""
    out: str
    err: str
    memory: int = 0
    """Peak resident bytes of a bomb."""


# ---- the attacks --------------------------------------------------------------------------------------------


def attacks(folder: Path) -> Iterator[Attack]:
    """Yield all attacks, their files written to a folder."""
    model = save_tiny("bert", folder / "model")
    finding = folder / "finding.json"
    finding.write_text(to_json(FINDINGS["found"]()))
    good = written(folder / "good.csv", GOOD.encode())
    settings = {
        "recipe": f'seeds = 1\n[[models]]\nid = "{model}"\n[[tasks]]\nsource = "{good}"\n',
    }

    def task(path: Path) -> tuple[str | Path, ...]:
        return ("score", model, "-t", path, *BOUNDED)

    def texts(path: Path) -> tuple[str | Path, ...]:
        return ("extract", model, "--texts", path, *BOUNDED)

    def corpus(path: Path) -> tuple[str | Path, ...]:
        return ("lab", "pretrain", folder / "made", "--objective", "mlm", "--corpus", path, "--steps", "1", *BOUNDED)

    def pairs(path: Path) -> tuple[str | Path, ...]:
        return ("score", model, "-t", path, "--ranking", "cosine", *BOUNDED)

    documents: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
        "recipe": lambda path: ("lab", "run", path, "--out", folder / "lab"),
        "finding": lambda path: ("export", model, folder / "made", "--layer", "1", "--finding", path, "--overwrite"),
        "zoo": lambda path: ("lab", "bench", path),
    }
    everything = {"task.csv": task, "texts.txt": texts, "corpus.txt.gz": corpus, "pairs.jsonl": pairs}
    everything |= {
        f"{name}.{'json' if name in ('finding', 'zoo') else 'toml'}": read for name, read in documents.items()
    }

    yield from malformed_tables(folder, task, texts, pairs)
    yield from malformed_documents(folder, documents, settings, finding)
    yield from odd_files(folder, everything, task(good))
    yield from hostile_parquet(folder, {"task": task, "texts": texts, "corpus": corpus})
    yield from flips(folder, texts, documents, {"finding": finding.read_bytes(), **settings})
    yield from mutations(folder, documents, finding)
    yield from formulas(folder, good)
    yield from bombs(folder, task, texts, corpus, pairs, documents)


Arguments = Callable[[Path], tuple[str | Path, ...]]


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def malformed_tables(folder: Path, task: Arguments, texts: Arguments, pairs: Arguments) -> Iterator[Attack]:
    cells = [line.split(",") for line in GOOD.splitlines()]
    names = ("sentence1", "sentence2", "score")
    records = [dict(zip(names, row, strict=True)) for row in cells]
    lines = [json.dumps(record) for record in records]

    def jsonl(line: str) -> bytes:
        return "\n".join([*lines, line]).encode()

    tables: dict[str, bytes] = {
        "empty.csv": b"",
        "blank.csv": b"\n\r\n\n,,,\n",
        "nul.csv": GOOD.encode() + b"a\0,b,x\0\n",
        "widths.csv": GOOD.encode() + b"a,b\n",
        "quote.csv": GOOD.encode() + b'a,"b,1\nc,d,2\n',
        "inner quote.csv": GOOD.encode() + b'a,"b"c,1\n',
        "damaged.csv": GOOD.encode() + "café,é,1\n".encode() + b"a\xe9,b,1\n",
        "half a character.csv": GOOD.encode("utf-16")[:-1],
        "utf16 without a mark.csv": GOOD.encode("utf-16-le"),
        "one mark.csv": b"\xff\xfe",
        "semicolons.csv": GOOD.replace(",", ";").encode() + b"a;b\n",
        "semicolons and a quote.csv": GOOD.replace(",", ";").encode() + b'a;"b;1\n',
        "commas.tsv": GOOD.encode() + b"a,b\n",
        "mixed marks.csv": GOOD.replace(",", ";").encode() + GOOD.encode(),
        "mixed decimals.csv": GOOD.replace(",", ";").encode() + b"a;b;1,5\nc;d;2.5\n",
        "surrogate.csv": GOOD.encode() + b"a,\xed\xa0\x80,1\n",
        "nan.csv": GOOD.encode() + b"a,b,nan\n",
        "infinity.csv": GOOD.encode() + b"a,b,1e999\n",
        "digits.csv": GOOD.encode() + b"a,b," + b"9" * 5000 + b"\n",
        "no number.csv": GOOD.encode() + b"a,b,c\n",
        "equal scores.csv": re.sub(rb"\d\n", b"1\n", GOOD.encode()),
        "few.csv": b"a,b,1\nc,d,2\n",
        "only a header.csv": b"sentence1,sentence2,score\n",
        "twice a name.csv": b"sentence1,sentence2,score,score\n" + re.sub(rb"(\d)\n", rb"\1,3\n", GOOD.encode()),
        "gzip.csv": gzip.compress(GOOD.encode()),
        "zip.csv": b"PK\x03\x04" + os.urandom(400),
        "tabs.tsv": GOOD.replace(",", "\t").encode() + b"a\tb\tc\td\n",
        "no object.jsonl": jsonl("[1, 2, 3]"),
        "half an object.jsonl": jsonl('{"sentence1": "a"'),
        "deep.jsonl": jsonl("[" * 100_000),
        "deep in a cell.jsonl": jsonl('{"sentence1": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        "digits.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": ' + "9" * 5000 + "}"),
        "NaN.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": NaN}'),
        "Infinity.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": -Infinity}'),
        "huge.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": 1e999}'),
        "twice a key.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": 1, "score": 5}'),
        "a list as score.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": [1]}'),
        "null score.jsonl": jsonl('{"sentence1": "a", "sentence2": "b", "score": null}'),
        "no Parquet.parquet": b"PAR1" + os.urandom(300) + b"PAR1",
        "short.parquet": b"PAR1",
        "unknown.xlsx": GOOD.encode(),
    }
    for name, data in tables.items():
        yield Attack(name=name, arguments=task(written(folder / "tables" / name, data)))
    semicolons = GOOD.replace(",", ";").replace("\n", ",5\n")
    others: dict[str, bytes] = {
        "latin.csv": GOOD.encode() + "café,b,1\n".encode("latin-1"),
        "utf16.csv": GOOD.encode("utf-16"),
        "semicolons and decimal commas.csv": semicolons.encode(),
        "all of it.tsv": semicolons.replace("b", "é").encode("cp1252"),
    }
    for name, data in others.items():
        path = written(folder / "tables" / name, data)
        format = ("--format", "delimiter=semicolon") if ";" in data.decode("latin-1") else ()
        yield Attack(name=f"other, {name}", arguments=(*task(path), *format), right=lambda out: "layer" in out)
    labels = [f"{'abcdefgh'[i % 8]} b,\\ud800{i % 2}" for i in range(40)]
    lone = "\n".join(json.dumps(dict(zip(("text", "label"), row.split(","), strict=True))) for row in labels)
    path = written(folder / "tables" / "lone.jsonl", lone.replace("\\\\u", "\\u").encode())
    yield Attack(name="lone surrogates as labels.jsonl", arguments=task(path), right=lambda out: "layer" in out)
    path = written(folder / "tables" / "names.jsonl", b'{"\\ud800": 1, "x": 2}\n' * 9)
    yield Attack(name="lone surrogates as names.jsonl", arguments=task(path))
    yield Attack(name="the same as texts", arguments=texts(path))
    for name, column in {
        "twice.parquet": pyarrow.table(
            [["a"] * 9, ["b"] * 9, [1.0, 2.0, 3.0] * 3], names=["sentence1"] * 2 + ["score"]
        ),
        "no columns.parquet": pyarrow.table({}),
        "no rows.parquet": pyarrow.table({"sentence1": pyarrow.array([], pyarrow.string())}),
        "nested.parquet": pyarrow.table({"sentence1": [["a"]] * 9, "sentence2": [{"a": 1}] * 9}),
        "garbled pandas.parquet": pyarrow.table({"text": ["a"] * 9}).replace_schema_metadata({"pandas": "[]"}),
        "garbled index.parquet": pyarrow.table({"text": ["a"] * 9}).replace_schema_metadata(
            {"pandas": '{"index_columns": [{"kind": "range"}], "columns": [{"x": 1}], "column_indexes": [3]}'}
        ),
        "garbled Arrow.parquet": pyarrow.table({"text": ["a"] * 9}).replace_schema_metadata({"ARROW:schema": "!"}),
        "bytes.parquet": pyarrow.table({"sentence1": [b"\xff"] * 9, "sentence2": [b"\xfe"] * 9, "score": [1.0] * 9}),
    }.items():
        path = folder / "tables" / name
        parquet.write_table(column, path)
        yield Attack(name=name, arguments=task(path))
    corpus = "".join(f'{{"_id": "d{i}", "text": "{"abcdefgh"[i % 8]} {i}"}}\n' for i in range(9)).encode()
    queries = corpus.replace(b'"d', b'"q')
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{i}\t1\n" for i in range(9))
    beir: dict[str, tuple[bytes, bytes, bytes]] = {
        "no id": (corpus + b'{"text": "x"}\n', queries, judged.encode()),
        "an id twice": (corpus + b'{"_id": "d1", "text": "x"}\n', queries, judged.encode()),
        "unknown ids": (corpus, queries, judged.replace("q", "z").encode()),
        "no number": (corpus, queries, judged.replace("\t1", "\tone").encode()),
        "not finite": (corpus, queries, judged.replace("\t1", "\tinf").encode()),
        "empty": (b"", queries, judged.encode()),
        "deep": (corpus + b"[" * 100_000, queries, judged.encode()),
    }
    for name, (documents, asked, relevant) in beir.items():
        place = folder / "beir" / name
        written(place / "corpus.jsonl", documents)
        written(place / "queries.jsonl", asked)
        written(place / "qrels" / "test.tsv", relevant)
        yield Attack(name=f"retrieval, {name}", arguments=pairs(place))


def malformed_documents(
    folder: Path, documents: dict[str, Arguments], settings: dict[str, str], finding: Path
) -> Iterator[Attack]:
    toml = {
        "deep lists": "x = " + "[" * 5000 + "]" * 5000,
        "deeper lists": "x = " + "[" * 1_000_000,
        "deep tables": "x = " + "{a = " * 5000 + "1" + "}" * 5000,
        "deep keys": "a." * 100_000 + "b = 1",
        "deep headers": "[" + "a." * 100_000 + "b]\nx = 1",
        "lists within the limit": "seeds = " + "[" * 14 + "]" * 14,
        "digits": "seeds = " + "9" * 5000,
        "hexadecimal": "seeds = 0x" + "f" * 5000,
        "infinity": "seeds = inf",
        "no number": "seeds = nan",
        "a date": "seeds = 1979-05-27",
        "twice a key": "seeds = 1\nseeds = 2",
        "an unknown key": "\nzzz = 1",
        "NUL": "a = '\0'",
        "a surrogate": 'a = "\\ud800"',
    }
    for kind in ("recipe",):
        for name, text in toml.items():
            path = written(folder / "toml" / f"{kind} {name}.toml", f"{text}\n{settings[kind]}".encode())
            yield Attack(name=f"{kind}, {name}", arguments=documents[kind](path))
        for name, data in {"latin": b"# caf\xe9", "utf16": settings[kind].encode("utf-16"), "empty": b""}.items():
            path = written(folder / "toml" / f"{kind} {name}.toml", data)
            yield Attack(name=f"{kind}, {name}", arguments=documents[kind](path))
    whole = json.loads(finding.read_text())
    values = {
        "empty": "",
        "null": "null",
        "deep": "[" * 100_000,
        "deep and closed": '{"a":' * 50_000 + "1" + "}" * 50_000,
        "digits": "9" * 5000,
        "NaN": "NaN",
        "twice": '{"entries": [], "entries": []}',
        "an unknown field": json.dumps({**whole, "zzz": 1}),
        "a list for an object": json.dumps({**whole, "provenance": []}),
    } | {f"without {name}": json.dumps({key: whole[key] for key in whole if key != name}) for name in list(whole)[:3]}
    for kind in ("finding", "zoo"):
        for name, text in values.items():
            path = written(folder / "json" / f"{kind} {name}.json", text.encode())
            yield Attack(name=f"{kind}, {name}", arguments=documents[kind](path))


def odd_files(folder: Path, readers: dict[str, Arguments], task: tuple[str | Path, ...]) -> Iterator[Attack]:
    """Links to devices, pipes, folders, links to nothing and to themselves, in place of every file."""

    def itself(path: Path) -> None:
        path.symlink_to(path)

    kinds: dict[str, Callable[[Path], object]] = {
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "a link to /dev/tty": lambda path: path.symlink_to("/dev/tty"),
        "a link to /proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
        "a link to nothing": lambda path: path.symlink_to("nothing"),
        "a link to itself": itself,
        "a pipe": os.mkfifo,
        "a folder": Path.mkdir,
    }
    for number, (kind, make) in enumerate(kinds.items()):
        for name, read in readers.items():
            path = folder / "odd" / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
            yield Attack(name=f"{name}, {kind}", arguments=read(path))
        for option in ("--validation", "--test"):
            yield Attack(name=f"{option}, {kind}", arguments=(*task, option, folder / "odd" / str(number) / "task.csv"))
    for name in ("a" * 300 + ".csv", "a\nb.csv", "b\udc80.csv", "~nobody-of-that-name/x.csv", "", " "):
        yield Attack(name=f"a path {name[:20]!r}", arguments=(*task[:3], os.fsencode(name).decode("utf-8", "replace")))


def hostile_parquet(folder: Path, readers: dict[str, Arguments]) -> Iterator[Attack]:
    """Parquet files of odd types and contents, damaged, too large or none, at every place that reads one."""
    vision = save_towers("clip", folder / "vision")
    np.save(folder / "e.npy", np.random.default_rng(0).normal(size=(40, 3, 4)))
    targets = written(folder / "targets.csv", b"target\n" + b"1.5\n2.5\n" * 20)
    model, rows = folder / "model", range(40)
    readers |= {
        "targets": lambda path: ("probe", folder / "e.npy", path),
        "groups": lambda path: ("probe", folder / "e.npy", targets, "--groups", path),
        "embeddings": lambda path: ("probe", path, targets),
        "compared": lambda path: ("compare", path, folder / "e.npy"),
        "images": lambda path: ("score", vision, "-t", path, *BOUNDED),
        "captions": lambda path: ("extract", vision, "--texts", path, *BOUNDED),
        "questions": lambda path: ("score", model, "-t", path, "--kind", "question answering", *BOUNDED),
        "queries": lambda path: ("score", model, "-t", path, "--kind", "triplets", *BOUNDED),
    }
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    lists = [[float(i), 1.0, i % 3] for i in rows]
    good: dict[str, dict[str, Any]] = {
        "sentences": {
            "sentence1": [f"{'abcdefgh'[i % 8]} b" for i in rows],
            "sentence2": ["c"] * 40,
            "score": [i % 6 for i in rows],
        },
        "targets": {"target": [i / 2 for i in rows]},
        "lists": {"layer 0": lists, "layer 1": lists},
        "images": {"image": [{"bytes": image.getvalue(), "path": "x"}] * 40, "label": [i % 2 for i in rows]},
        "questions": {
            "id": [str(i) for i in rows],
            "question": ["a b"] * 40,
            "context": [f"a b c {i}" for i in rows],
            "answers": [{"text": ["a"], "answer_start": [0]}] * 40,
        },
    }
    names = [name for columns in good.values() for name in columns]
    values: dict[str, list[Any]] = {
        "nothing": [None] * 40,
        "empty lists": [[]] * 40,
        "ragged lists": [[1.0] * (i % 3) for i in rows],
        "lists of nothing": [[None, 1.0]] * 40,
        "lists of NaN": [[math.nan] * 3] * 40,
        "lists of lists": [[[1.0], [2.0]]] * 40,
        "lists of text": [["a", "b"]] * 40,
        "bytes": [b"\xff\xfe"] * 40,
        "dates": [datetime.datetime(2020, 1, 1 + i % 9) for i in rows],
        "decimals": [decimal.Decimal("1.5")] * 40,
        "whole numbers of 64 bits": [2**63 - 1 - i for i in rows],
        "infinities": [math.inf, -math.inf] * 20,
        "mappings": [{"bytes": None, "path": None}] * 40,
        "mappings of text": [{"bytes": "a", "path": "/dev/zero"}] * 40,
        "truths": [True, None] * 20,
        "surrogates": ["a\x1b[2J\u202e\0"] * 40,
    }
    tables = {name: pyarrow.table(columns) for name, columns in good.items()}
    tables |= {name: pyarrow.table(dict.fromkeys(names, column)) for name, column in values.items()}
    half, fixed = (
        pyarrow.array(np.ones(40, np.float16)),
        pyarrow.array([[1.0, 2.0]] * 40, pyarrow.list_(pyarrow.float32(), 2)),
    )
    tables |= {
        "halves": pyarrow.table(dict.fromkeys(names, half)),
        "lists of a fixed size": pyarrow.table(dict.fromkeys(names, fixed)),
        "dictionaries": pyarrow.table(dict.fromkeys(names, pyarrow.array(["a", "b"] * 20).dictionary_encode())),
        "maps": pyarrow.table(dict.fromkeys(names, pyarrow.array([[("a", 1)]] * 40, pyarrow.map_("string", "int8")))),
        "no columns": pyarrow.table({}),
        "no rows": tables["lists"].slice(0, 0),
        "twice a name": pyarrow.table([lists, lists], names=["target", "target"]),
        "many columns": pyarrow.table({f"c{i}": [1.0] for i in range(20_000)}),
        "names that command": pyarrow.table({"\x1b]0;x\x07": lists, "": lists}),
    }
    rng = random.Random(0)
    for name, table in tables.items():
        path = folder / "parquet" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(table, path)
        for place, read in readers.items():
            yield Attack(name=f"{place}, {name}.parquet", arguments=read(path), right=lambda _: True)
            if name not in good:
                continue
            data = path.read_bytes()
            for number in range(FLIPS // 8):
                changed = bytearray(data)
                for _ in range(rng.choice((1, 3, 20))):
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
                damaged = written(folder / "parquet" / f"{place} {name} {number}.parquet", bytes(changed))
                yield Attack(
                    name=f"{place}, {name}.parquet, bytes changed", arguments=read(damaged), right=lambda _: True
                )
            for cut in (0, 4, 50, len(data) // 2, len(data) - 1):
                damaged = written(folder / "parquet" / f"{place} {name} {cut}.parquet", data[:cut])
                yield Attack(name=f"{place}, {cut} bytes of {name}.parquet", arguments=read(damaged))
    repeated = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2**22, pyarrow.int32()), ["x" * 2**16])
    bomb = folder / "parquet" / "bomb.parquet"
    parquet.write_table(pyarrow.table({"target": repeated}), bomb)
    images = folder / "parquet" / "images bomb.parquet"
    parquet.write_table(pyarrow.table({"image": repeated, "label": repeated}), images)
    for place, read in readers.items():
        yield Attack(name=f"{place}, 4 million texts of 64 KiB", arguments=read(bomb), bomb=True)
        yield Attack(name=f"{place}, 4 million images of 64 KiB", arguments=read(images), bomb=True)
        for what, make in (("a pipe", os.mkfifo), ("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"))):
            odd = folder / "parquet" / f"{place} {what.rpartition('/')[2]}.parquet"
            make(odd)
            yield Attack(name=f"{place}, {what}", arguments=read(odd), bomb=True)


def flips(
    folder: Path, texts: Arguments, documents: dict[str, Arguments], valid: dict[str, str | bytes]
) -> Iterator[Attack]:
    """Copies of valid files with bytes changed, left out and put in: what is read is as right as the file, or refused.

    A changed letter is another text, so a file that can be read is no failure here.
    """
    rng = random.Random(0)
    rows = [line.split(",") for line in GOOD.splitlines()]
    buffer = io.BytesIO()
    columns = dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), buffer)
    files: dict[str, tuple[bytes, Arguments]] = {
        "x.parquet": (buffer.getvalue(), texts),
        "x.csv": (b'"a, b",' + GOOD.encode(), texts),
        "x.jsonl": ("\n".join(json.dumps({"text": row[0], "score": row[2]}) for row in rows).encode(), texts),
    }
    for kind in ("recipe", "finding"):
        data = valid[kind]
        name = f"{kind}.{'json' if kind == 'finding' else 'toml'}"
        files[name] = (data.encode() if isinstance(data, str) else data, documents[kind])
    for name, (data, read) in files.items():
        for number in range(FLIPS):
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 3, 20))):
                where = rng.randrange(len(changed))
                how = rng.randrange(3)
                if how == 0:
                    changed[where] = rng.randrange(256)
                elif how == 1:
                    del changed[where : where + rng.randrange(1, 9)]
                else:
                    changed[where:where] = rng.randbytes(rng.randrange(1, 9))
            if name.endswith(".toml"):  # so that none begins to train
                changed += b"\nzzz_unknown = 1\n"
            path = written(folder / "flips" / str(number) / name, bytes(changed))
            anything = None if name.endswith(".toml") else lambda out: True
            yield Attack(name=f"{name}, bytes changed", arguments=read(path), right=anything)


def mutations(folder: Path, documents: dict[str, Arguments], finding: Path) -> Iterator[Attack]:
    """Studies and zoos in which one value is another: they are refused, or reported as they stand."""
    rng = random.Random(1)
    zoo = next(SHIPPED.glob("*captions.json"))
    for kind, file, times in (("finding", finding, 4 * FLIPS), ("zoo", zoo, FLIPS // 5)):
        for number in range(times):
            document = json.loads(file.read_text())
            place, key = document, rng.choice(list(document))
            while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.95:
                place = place[key]
                key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            place[key] = rng.choice(
                [None, -1, 0, 10**9, 10**400, 1e308, "", "\ud800", FORMULA, [], {}, [[]], True, "nan"]
            )
            path = written(folder / "mutations" / f"{number}" / f"{kind}.json", json.dumps(document).encode())
            yield Attack(
                name=f"{kind}, {key} = {place[key]!r:.20}", arguments=documents[kind](path), right=lambda _: True
            )


def formulas(folder: Path, good: Path) -> Iterator[Attack]:
    """A folder that a spreadsheet would run, as a model and through a page to its table of numbers."""
    page, name = folder / "formula.html", FORMULA.split("/")[0]
    os.chdir(folder)
    save_tiny("bert", Path(name))

    def harmless(_: str) -> bool:
        (table,) = re.findall(r'<script[^>]*id="table"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
        cells = [cell for row in csv.reader(io.StringIO(json.loads(table))) for cell in row]
        return any(cell.startswith(f"'{name}") for cell in cells) and not any(cell.startswith("=") for cell in cells)

    arguments = ("finetune", name, "-t", good, "--layers", "1", "--seeds", "1", "--epochs", "1", "--report", page)
    yield Attack(name="a formula as a model", arguments=(*arguments, *BOUNDED), right=harmless)


def bombs(
    folder: Path,
    task: Arguments,
    texts: Arguments,
    corpus: Arguments,
    pairs: Arguments,
    documents: dict[str, Arguments],
) -> Iterator[Attack]:
    """Small files that are large when unpacked, and large files of nothing."""
    place = folder / "bombs"
    place.mkdir()
    word = "x" * 2**20

    def packed(name: str, member: bytes, times: int) -> Path:
        return written(place / name, gzip.compress(member, 9) * times)

    def sparse(name: str, size: int = 2**35) -> Path:
        with (place / name).open("wb") as file:
            file.truncate(size)
        return place / name

    def arrow(name: str, table: pyarrow.Table, **how: object) -> Path:
        parquet.write_table(table, place / name, **how)
        return place / name

    def many(name: str, piece: pyarrow.Table, times: int, **how: object) -> Path:
        """A file of the same rows again and again, written piece by piece."""
        with parquet.ParquetWriter(place / name, piece.schema, compression="zstd", **how) as writer:
            for _ in range(times):
                writer.write_table(piece)
        return place / name

    repeated = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2**20, pyarrow.int32()), [word])
    ones = pyarrow.array([1] * 30_000_000, pyarrow.int8())
    similar = pyarrow.table({"text": [f"{word[: 2**16]}{i}" for i in range(3000)]})
    attacks: dict[str, tuple[str | Path, ...]] = {
        "30 million rows of Parquet": texts(many("rows.parquet", pyarrow.table({"text": ["a b"] * 2**20}), 30)),
        "the same as a task": task(place / "rows.parquet"),
        "a text of 1 MiB, a million times": texts(arrow("text.parquet", pyarrow.table({"text": repeated}))),
        "the same in lists": texts(
            arrow(
                "lists.parquet",
                pyarrow.table({"text": pyarrow.ListArray.from_arrays([0, 2**19, 2**20], repeated)}),
            )
        ),
        "a list of 30 million": texts(
            arrow("list.parquet", pyarrow.table({"text": pyarrow.ListArray.from_arrays([0, len(ones)], ones)}))
        ),
        "texts of 64 KiB as deltas": texts(
            many("deltas.parquet", similar, 15, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
        ),
        "4 GiB of line ends as gzip": corpus(packed("lines.txt.gz", b"\n" * 2**26, 64)),
        "4 GiB of letters on a line as gzip": corpus(packed("letters.txt.gz", b"a" * 2**26, 64)),
        "4 GiB of short lines as gzip": corpus(packed("short.txt.gz", b"a\n" * 2**25, 64)),
        "4 GiB of long lines as gzip": corpus(packed("long.txt.gz", (b"a" * 999 + b"\n") * 67_000, 64)),
        "half a gzip": corpus(written(place / "half.txt.gz", gzip.compress(os.urandom(10**6))[: 5 * 10**5])),
        "32 GiB of nothing as texts": texts(sparse("x.txt")),
        "as CSV": task(sparse("x.csv")),
        "as JSON lines": pairs(sparse("x.jsonl")),
        "as Parquet": texts(sparse("x.parquet")),
        "25 million line ends": texts(written(place / "ends.txt", b"\n" * 25_000_000)),
        "25 million carriage returns as CSV": task(written(place / "returns.csv", b"a\r" * 25_000_000)),
        "25 million cells in rows": task(written(place / "cells.csv", (b"a," * 999 + b"a\n") * 25_000)),
        "40 million cells in a row": task(written(place / "row.csv", b"," * 40_000_000)),
        "a quote that is never closed": task(written(place / "quote.csv", b'a,"' + b"b,c\n" * 10_000_000)),
        "empty cells in a quoted row": task(written(place / "quoted.csv", b'"\n",' * 10_000_000)),
        "as many names as lines": pairs(
            written(place / "names.jsonl", b"".join(b'{"k%d":1}\n' % i for i in range(60_000)))
        ),
        "lists in a cell": pairs(written(place / "lists.jsonl", b'{"a":[' + b"[]," * 10_000_000 + b"[]]}")),
        "a line of JSON of 40 MB": pairs(written(place / "line.jsonl", b'{"a":"' + b"a" * 40_000_000 + b'"}')),
        "a finding of lists": documents["finding"](written(place / "lists.json", b"[" + b"[]," * 10_000_000 + b"[]]")),
        **{f"32 GiB of nothing as a {kind}": read(sparse(f"{kind}.big")) for kind, read in documents.items()},
        "settings of 20 MB": documents["recipe"](written(place / "x.toml", b"a = 1\n" + b"# a\n" * 5_000_000)),
    }
    for name, arguments in attacks.items():
        yield Attack(name=name, arguments=arguments, bomb=True)


# ---- how they are made --------------------------------------------------------------------------------------


def outcome_of(attack: Attack, environment: dict[str, str]) -> Outcome:
    """Return what the command does, in this process or, for a bomb, in one of its own."""
    arguments = [str(argument) for argument in attack.arguments]
    if attack.bomb:
        return bombed(arguments, environment)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor, since others may use it, too
    signal.alarm(10 * SECONDS)
    try:
        result = CliRunner().invoke(app, arguments, env=environment)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    failed = result.exception is not None and not isinstance(result.exception, SystemExit)
    out, err = result.stdout, result.stderr
    return Outcome(
        code=None if failed else result.exit_code, out=out, err=f"{err}{result.exception!r}" if failed else err
    )


def bombed(arguments: Sequence[str], environment: dict[str, str]) -> Outcome:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = [sys.executable, "-m", "layerprobe_cli.main", *arguments]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=out, stderr=err, stdin=-3)
        deadline, memory = time.monotonic() + SECONDS, 0
        while process.poll() is None:
            memory = max(memory, peak_memory(process.pid))
            if time.monotonic() > deadline or memory > MEMORY:
                process.kill()
                process.wait()
            time.sleep(0.02)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    code = process.returncode
    if memory > MEMORY:
        texts[1] += f"\n{memory / 2**20:,.0f} MiB of memory"
    broken = code < 0 or "Traceback" in texts[1] or memory > MEMORY
    return Outcome(code=None if broken else code, out=texts[0], err=texts[1], memory=memory)


def peak_memory(pid: int) -> int:
    """Return the peak resident bytes of a process; 0 where it is gone, or the system has no /proc."""
    try:
        peak = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(peak[1]) * 1024 if peak else 0


def verdict(attack: Attack, outcome: Outcome) -> str:
    """Return survived, silent or traceback."""
    lines = [line for line in outcome.err.splitlines() if not line.startswith(("note: ", "warning: ", "info: "))]
    if outcome.code is None or "out of memory" in outcome.err:
        return "traceback"
    if outcome.code == 0:
        return "survived" if attack.right is not None and attack.right(outcome.out) else "silent"
    one_line = outcome.code == 1 and len(lines) == 1 and lines[0].startswith("error: ")
    return "survived" if one_line or outcome.code == 2 else "traceback"


def main() -> int:
    """Make all attacks, print the table, and return 1 if one was not survived."""

    def too_long(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("-v", "--verbose", action="store_true", help="also print what was survived")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGPROF, too_long)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (2 * MEMORY, 2 * MEMORY))
    begin, counts, most = time.monotonic(), dict.fromkeys(("survived", "silent", "traceback"), 0), 0
    slowest = (0.0, "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {"LAYERPROBE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        os.environ.update(environment)
        for attack in attacks(folder):
            if not re.search(options.only, attack.name):
                continue
            started = time.monotonic()
            outcome = outcome_of(attack, environment)
            result = verdict(attack, outcome)
            counts[result] += 1
            most = max(most, outcome.memory)
            slowest = max(slowest, (time.monotonic() - started, attack.name))
            if result != "survived" or options.verbose:
                last = (outcome.err.strip() or outcome.out.strip() or "(nothing)").splitlines()[-1]
                memory = f" [{time.monotonic() - started:.1f} s, {outcome.memory / 2**20:,.0f} MiB]"
                print(f"{result}: {attack.name}{memory if attack.bomb else ''}: {last[:300]}", flush=True)
    print(f"{'tried':>8} {'survived':>8} {'silent':>8} {'traceback':>9}")
    print(f"{sum(counts.values()):8} {counts['survived']:8} {counts['silent']:8} {counts['traceback']:9}")
    seconds, memory = time.monotonic() - begin, most / 2**20
    print(f"{seconds:.0f} s; slowest: {slowest[1]}, {slowest[0]:.0f} s; a bomb took at most {memory:,.0f} MiB")
    return int(counts["survived"] < sum(counts.values()))


if __name__ == "__main__":
    sys.exit(main())
