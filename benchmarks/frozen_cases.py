"""Embeddings of every layer of a model for frozen tasks, from real data in a folder, kept as one .npz a model and task.

`python benchmarks/frozen_cases.py DATA OUT MODEL --name NAME`: DATA has stsb/, sick/, mrpc/, corpus/, wnut17/ and
cranfield/ as in their public repositories; at most 2,000 texts a task, but for Cranfield's 1,625. Mean pooling.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load
from layerprobe.encoders.model import Model
from layerprobe.extraction.embed import kept_token_states
from layerprobe.extraction.embeddings import extract
from layerprobe.kinds.tokens_loss import NO_TOKEN, tokenize_words

PAIRS, WORDS, BLOCKS, LINES = 1000, 3000, 100, 20
SHARE = 1.0
"""Of all these but the lines, for a model that takes long: `--share`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One model on one task."""

    embeddings: NDArray[np.float32]
    """(n, layers, features)."""
    targets: NDArray[np.generic]
    kind: str
    groups: NDArray[np.int64] | None = None

    def save(self, path: Path) -> None:
        groups = {} if self.groups is None else {"groups": self.groups}
        np.savez(
            path,
            allow_pickle=False,
            embeddings=self.embeddings,
            targets=self.targets,
            kind=np.array(self.kind),
            **groups,
        )

    @classmethod
    def load(cls, path: Path) -> Case:
        with np.load(path) as file:
            groups = file.get("groups")
            return cls(embeddings=file["embeddings"], targets=file["targets"], kind=str(file["kind"]), groups=groups)


def layers_of(model: str, texts: list[str]) -> NDArray[np.float32]:
    """Return (text, layer, feature) of texts as they come, from the store or one pass."""
    embeddings = extract(Model(model, pooling="mean"), texts)
    rows = embeddings.rows(texts)
    return np.stack([embeddings.measured(layer)[rows] for layer in range(embeddings.n_layers)], axis=1)


def scored_pairs(model: str, rows: Iterator[tuple[str, str, float]]) -> Case:
    """Return pairs, drawn at random, scored by their cosines."""
    pairs = list(rows)
    chosen = np.sort(np.random.default_rng(0).permutation(len(pairs))[: round(SHARE * PAIRS)])
    first, second, scores = zip(*(pairs[i] for i in chosen), strict=True)
    texts = list(dict.fromkeys((*first, *second)))
    number = {text: i for i, text in enumerate(texts)}
    targets = np.array([(number[a], number[b], c) for a, b, c in zip(first, second, scores, strict=True)])
    return Case(embeddings=layers_of(model, texts), targets=targets, kind="pairs")


def stsb(data: Path, language: str) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of the test split of the STS benchmark."""
    if language == "ko":
        with (data / "stsb" / "ko-test.tsv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                yield row["sentence1"], row["sentence2"], float(row["score"])
        return
    with (data / "stsb" / f"{language}-test.csv").open(encoding="utf-8") as file:
        for first, second, score in csv.reader(file):
            yield first, second, float(score)


def sick(data: Path) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of the test split of SICK."""
    with (data / "sick" / "SICK_test_annotated.txt").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield row["sentence_A"], row["sentence_B"], float(row["relatedness_score"])


def mrpc(data: Path) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of the test split of MRPC, with 1 where they say the same."""
    with (data / "mrpc" / "msr-para-test.tsv").open(encoding="utf-8-sig") as file:
        next(file)
        for line in file:
            quality, _, _, first, second = line.rstrip("\n").split("\t")
            yield first, second, float(quality)


def reviews(data: Path, model: str) -> Case:
    """Return sentences of film reviews and whether the review is positive: the corpus has negative reviews first.

    Blocks of neighbouring lines are from one review or two, and groups.
    """
    with gzip.open(data / "corpus" / "movie_reviews.en.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    rng, texts, labels, groups = np.random.default_rng(0), [], [], []
    for label, (start, end) in enumerate([(0, 30_000), (33_000, len(lines))]):
        places = rng.choice((end - start) // 200, round(SHARE * BLOCKS / 2), replace=False)
        for place in np.sort(places):
            begin = start + 200 * int(place)
            texts += lines[begin : begin + LINES]
            labels += [("negative", "positive")[label]] * LINES
            groups += [label * 1000 + int(place)] * LINES
    return Case(embeddings=layers_of(model, texts), targets=np.array(labels), kind="classes", groups=np.array(groups))


def wnut17(data: Path, model: str) -> Case:
    """Return words of 1,000 sentences with the type of their entity: those in one, and as many others, drawn."""
    sentences: list[list[tuple[str, str]]] = [[]]
    for line in (data / "wnut17" / "wnut17train.conll").read_text(encoding="utf-8").splitlines():
        token, _, label = line.partition("\t")
        if token:
            sentences[-1].append((token, label))
        elif sentences[-1]:
            sentences.append([])
    with_entities = [each for each in sentences if any(label != "O" for _, label in each)][: round(SHARE * 1000)]
    encoder = load(resolve(Model(model)))
    words = tokenize_words(encoder, [[word for word, _ in each] for each in with_entities])
    labels = np.array([label.partition("-")[2] or "none" for each in with_entities for _, label in each])
    rng, there = np.random.default_rng(0), words.first != NO_TOKEN
    inside, outside = np.flatnonzero(there & (labels != "none")), np.flatnonzero(there & (labels == "none"))
    inside = inside[: round(SHARE * WORDS / 2)]
    rows = np.sort(np.concatenate([inside, rng.choice(outside, len(inside), replace=False)]))
    with kept_token_states(encoder, words.texts, words.sentence[rows], words.first[rows]) as states:
        embeddings = np.array(states).transpose(1, 0, 2).copy()
    return Case(embeddings=embeddings, targets=labels[rows], kind="classes", groups=words.sentence[rows])


def cranfield(data: Path, model: str) -> Case:
    """Return abstracts without their titles, queries, and which abstracts are relevant with their grade."""
    documents, queries = [], []
    with (data / "cranfield" / "corpus.jsonl").open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            text = document["text"].removeprefix(document["title"]).strip(" .\n")
            documents.append((document["_id"], text or document["title"] or "none"))
    with (data / "cranfield" / "queries.jsonl").open(encoding="utf-8") as file:
        queries = [(row["_id"], row["text"]) for row in map(json.loads, file)]
    at = {("d", name): i for i, (name, _) in enumerate(documents)}
    at |= {("q", name): len(documents) + i for i, (name, _) in enumerate(queries)}
    with (data / "cranfield" / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        rows = [
            (at["q", row["query-id"]], at["d", row["corpus-id"]], float(row["score"]))
            for row in csv.DictReader(file, delimiter="\t")
            if float(row["score"]) > 0 and ("d", row["corpus-id"]) in at
        ]
    return Case(
        embeddings=layers_of(model, [text for _, text in (*documents, *queries)]),
        targets=np.array(rows),
        kind="queries",
    )


CASES: dict[str, Callable[[Path, str], Case]] = {
    "stsb-en": lambda data, model: scored_pairs(model, stsb(data, "en")),
    "stsb-de": lambda data, model: scored_pairs(model, stsb(data, "de")),
    "stsb-es": lambda data, model: scored_pairs(model, stsb(data, "es")),
    "stsb-ko": lambda data, model: scored_pairs(model, stsb(data, "ko")),
    "sick": lambda data, model: scored_pairs(model, sick(data)),
    "mrpc": lambda data, model: scored_pairs(model, mrpc(data)),
    "reviews": reviews,
    "wnut17": wnut17,
    "cranfield": cranfield,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("model")
    parser.add_argument("--name", required=True, help="what the model is called in names of files")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--share", type=float, default=SHARE, help="of the items of each task")
    given = parser.parse_args()
    SHARE = given.share
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only.split(","):
        path = given.out / f"{given.name}.{name}.npz"
        if not path.exists():
            CASES[name](given.data, given.model).save(path)
            print(path, flush=True)
