"""What the command line prints, written down to be compared across a change that should not alter a number.

Of most commands that is their JSON, of those whose name ends in -text what the terminal shows, and of pages the rows
of their tables.

    python tests/golden.py OUT             runs every command on the embedded pair and writes OUT/*.json
    python tests/golden.py OUT --against BEFORE

The second form also prints what differs from an earlier folder. Times, versions and places are left out. No test: it
takes some minutes, and there is nothing to compare with but another revision.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

VOLATILE = re.compile(
    r"seconds|rounds_by_layer|by_round|created|peak_memory|^speed|tokens_per_second|texts_per_second|^versions$|hardware"
    r"|bytes|modified"
)
"""Names of what is left out: keys of JSON and, in lower case, columns of pages."""
VOLATILE_WORDS = re.compile(
    r"[\d.]+(?= [KMGT]iB are free)|[\d.]+(?= times as fast)"
    r"|(?<=as fast )\[[^\]]*\]|\d+ (?:s|min|h)(?= on cpu)|(?<=, and )\d+ (?:s|min|h)\b"
    r"|(?<=, about )\d+ (?:s|min|h)\b"
)
"""What a sentence measures."""
PROGRESS = re.compile(r"\d+% after \d+ (s|min|h)")
LANGUAGE_PAIRS = """
from tests.lab.recipes import STUDY
from layerprobe.embedded import embedded_task
import csv, sys, pathlib
out = pathlib.Path(sys.argv[1])
task = embedded_task(train=64, validation=40, test=120)
for split, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
    rows = task.split(split)
    with (out / f"pairs-{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(zip(rows.first, rows.second, [round(5 * t, 1) for t in rows.targets]))
    with (out / f"same-{name}.tsv").open("w", newline="") as file:
        file.write("sentence1\\tsentence2\\tlabel\\n")
        file.writelines(f"{a}\\t{b}\\t{int(t > 0.5)}\\n" for a, b, t in zip(rows.first, rows.second, rows.targets))
    with (out / f"relation-{name}.tsv").open("w", newline="") as file:
        file.write("premise\\thypothesis\\tlabel\\n")
        names = [("far", "near", "same")[min(2, int(3 * t))] for t in rows.targets]
        file.writelines(f"{a}\\t{b}\\t{name}\\n" for a, b, name in zip(rows.first, rows.second, names))
    with (out / f"class-{name}.tsv").open("w", newline="") as file:
        file.write("text\\tlabel\\n")
        file.writelines(f"{a}\\t{'long' if len(a) > 40 else 'short'}\\n" for a in rows.first)
texts = task.test.texts
(out / "texts.txt").write_text("\\n".join(texts) + "\\n")
(out / "words.txt").write_text("\\n".join(dict.fromkeys(word for text in texts for word in text.split())) + "\\n")
with (out / "documents.csv").open("w", newline="") as file:
    csv.writer(file).writerows([("text", "source"), *((text, f"d{i // 4}") for i, text in enumerate(texts))])
with (out / "queries.csv").open("w", newline="") as file:
    rows = [(a, b) for a, b, t in zip(task.test.first, task.test.second, task.test.targets) if t > 0.6]
    csv.writer(file).writerows([("query", "document"), *rows])
(out / "chain.toml").write_text('''layers = [1, 3]
seeds = 2
cka = true
[[models]]
id = "RTD"
reference = "MLM"
[[models]]
id = "RTD"
random_init = 0
[[step]]
adapt = "texts.txt"
max_steps = 2
batch_size = 8
accumulation = 1
[[step]]
tune = "same-train.tsv"
epochs = 1
learning_rate = 3e-4
[[step]]
average = "layers"
[[step]]
average = "scans"
[[tasks]]
source = "pairs-train.csv"
[scans]
falling = 2
[budget.short]
epochs = 1
learning_rate = 3e-4
''')
(out / "study.toml").write_text(STUDY.replace("seeds = 1", "seeds = 2"))
"""
TINY_MODELS = """
import pathlib, sys
from tokenizers import processors
from transformers.utils import logging
from tests.images import digit_folder, save_towers, save_vision
from tests.models import save_tiny, tiny_tokenizer
out = pathlib.Path(sys.argv[1])
logging.disable_progress_bar()
digit_folder(out / "digits", 150, classes=(3, 5, 8, 9))
save_vision("vit", out / "vit")
save_towers("clip", out / "clip")
save_tiny("modernbert", out / "modernbert")
tokenizer = tiny_tokenizer(eos_token="[SEP]")
tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A", pair="[CLS] $A $B:1", special_tokens=[("[CLS]", 2)]
)
save_tiny("llama", out / "llama", tokenizer=tokenizer)
"""
QUICK = "--epochs 1 --learning-rate 3e-4 --seeds 3"
SHORT = "--epochs 1 --learning-rate 3e-4 --seeds 2"
MEASURES = ("mutual-knn", "procrustes", "svcca")
LATER = {
    "regression": "values",
    "entities": "entities",
    "tags": "tags",
    "triplets": "triplets --kind triplets",
    "retrieval": "beir",
    "questions": "questions.json",
    "summaries": "articles.jsonl",
}
"""Kinds of tasks with files of their own, by what stands in the names of their commands."""
COMMANDS: dict[str, str] = {
    "check": "check RTD",
    "extract": "extract RTD --texts texts.txt",
    "extract-cls": "extract RTD --texts texts.txt --pooling cls --prompt la --max-length 9",
    "compare": "compare RTD MLM -t pairs-train.csv",
    "compare-alone": "compare RTD --texts texts.txt",
    "compare-zscore": "compare RTD MLM --texts texts.txt --normalize zscore --alignment best-match",
    "compare-rbf": "compare RTD MLM --texts texts.txt --kernel rbf --bandwidth 0.8",
    "compare-biased": "compare RTD MLM --texts texts.txt --estimator biased --no-intervals",
    "compare-documents": "compare RTD MLM --texts documents.csv --groups source",
    "compare-several": "compare RTD MLM RTD --texts texts.txt",
    **{f"compare-{name}": f"compare RTD MLM --texts texts.txt --measure {name}" for name in MEASURES},
    "predict-task": "predict RTD -r MLM -t pairs-train.csv",
    "predict-texts": "predict RTD --texts texts.txt",
    "predict-words": "predict RTD --texts words.txt",
    "predict-documents": "predict RTD --texts documents.csv --groups source",
    "predict-plateau": "predict RTD -r MLM -r RTD --texts texts.txt --rule plateau^of^CKA",
    "predict-several": "predict RTD -r MLM -r RTD --texts texts.txt",
    "predict-labels": "predict RTD -t pairs-train.csv --rule best^layer^by^probe",
    "metrics": "predict RTD --texts texts.txt --readings",
    "score-sts": "score RTD -t pairs-train.csv",
    "score-paraphrase": "score RTD -t same-train.tsv",
    "score-entailment": "score RTD -t relation-train.tsv",
    "score-classification": "score RTD -t class-train.tsv --split validation",
    "probe-sts": "probe RTD -t pairs-train.csv",
    "retrieve": "score RTD -t queries.csv --ranking cosine",
    "profile": "profile RTD --layers 0,4,8 --lengths 8,16 --batch-sizes 1,4 --rounds 1 --repeats 1 --warmup 0",
    "shrink": f"shrink RTD -t pairs-train.csv --size 2 --dimensions 16 --batch-size 16 {SHORT}",
    "finetune": f"finetune RTD -t pairs-train.csv --layers 0,2 --save-models {QUICK}",
    "finetune-paraphrase": f"finetune RTD -t same-train.tsv --layers 2 {QUICK}",
    "finetune-entailment": f"finetune RTD -t relation-train.tsv --layers 2 {QUICK}",
    "finetune-classification": f"finetune RTD -t class-train.tsv --layers 2 {QUICK}",
    "scan": f"finetune --scan RTD -t pairs-train.csv --save-models {QUICK}",
    "find": f"find RTD -t pairs-train.csv --budget 12% --against-last 1 {QUICK}",
    "find-reference": f"find RTD -r MLM -t pairs-train.csv --final --report OUT/find.html {QUICK}",
    "finetune-models": f"finetune RTD MLM -t pairs-train.csv --layers 1,2 --report OUT/tuned.html {SHORT}",
    "chain-plan": "lab run chain.toml --dry-run",
    "chain": "lab run chain.toml --report OUT/chain.html",
    "adapt": "lab adapt RTD --texts texts.txt -o OUT/adapted --max-steps 2 --batch-size 8 --accumulation 1",
    "pretrain": "lab pretrain OUT/pretrained --corpus language --objective electra-15 --size tiny --steps 2 "
    "--batch-size 4",
    "lab-plan": "lab run study.toml --out OUT/lab --dry-run",
    "lab": "lab run study.toml --out OUT/lab",
    "export": "export RTD OUT/exported --layer 4",
    "export-int8": "export RTD OUT/exported-int8 --layer 4 --int8 onnx --int8 openvino",
    "bench-predictors": "lab bench",
    "bench-predictors-tuned": "lab bench --tuned",
    "reproduce-plan": "lab reproduce table1 --dry-run",
    "cache": "cache list",
    "check-decoder": "check OUT/llama -t pairs-train.csv",
    "check-images": "check OUT/vit -t digits",
    **{f"score-{name}": f"score RTD -t {source}" for name, source in LATER.items()},
    **{f"finetune-{name}": f"finetune RTD -t {source} --layers 1,3 {SHORT}" for name, source in LATER.items()},
    "finetune-negatives": f"finetune RTD -t triplets --kind retrieval --layers 2 {SHORT}",
    "finetune-lora": f"finetune RTD -t pairs-train.csv --layers 0,3 --lora 2 {SHORT}",
    "finetune-checkpointing": f"finetune RTD -t same-train.tsv --layers 2 --gradient-checkpointing {SHORT}",
    "scan-questions": f"finetune --scan RTD -t questions.json {SHORT}",
    "scan-entities": f"finetune --scan RTD -t entities --save-models {SHORT}",
    "find-classification": f"find RTD -t class-train.tsv {SHORT}",
    "predict-entities": "predict RTD -r MLM -t entities",
    "metrics-triplets": "predict RTD -t triplets --kind triplets --readings",
    "score-models": "score RTD MLM -t pairs-train.csv --no-time --report OUT/models.html",
    "score-models-probe": "score RTD MLM -t values --no-time",
    "score-models-entities": "score RTD MLM -t entities --no-time --level 0.9",
    "score-prompts": "score RTD -t beir --query-prompt la^ --document-prompt un^",
    "summarize": "score RTD -t articles.jsonl",
    "retrieve-folder": "score RTD MLM -t beir",
    "retrieve-pairs": "score RTD -t pairs-train.csv --columns 0,1,2 --relevant-from 3 --ranking dot",
    "across": "score RTD -t pairs-train.csv -t same-train.tsv -t class-train.tsv -t values",
    "extract-decoder": "extract OUT/llama --texts texts.txt",
    "extract-decoder-mean": "extract OUT/llama --texts texts.txt --pooling mean --no-end-token --norm raw",
    "score-decoder": "score OUT/llama -t pairs-train.csv",
    "finetune-decoder": f"finetune OUT/llama -t pairs-train.csv --layers 2 {SHORT}",
    "compare-norms": "compare OUT/modernbert OUT/llama -t pairs-train.csv",
    "predict-random": "predict RTD --texts texts.txt --random-init 1",
    "extract-half": "extract MLM --texts texts.txt --store-dtype float16 --pooling max",
    "extract-images": "extract OUT/vit --texts digits",
    "score-images": "score OUT/vit -t digits",
    "score-tower": "score OUT/clip:image -t digits --pooling cls",
    "score-text-tower": "score OUT/clip:text -t pairs-train.csv",
    "predict-images": "predict OUT/vit -t digits",
    "compare-captions": "compare OUT/vit RTD --texts captions.csv --alignment best-match",
    "finetune-images": f"finetune OUT/vit -t digits --layers 1,2 {SHORT}",
    "export-tower": "export OUT/clip OUT/tower --layer 1",
    "score-report": "score RTD -t entities --report OUT/score.html",
    "predict-report": "predict RTD -r MLM -t pairs-train.csv --report OUT/predict.html",
    "compare-report": "compare RTD MLM -t pairs-train.csv --report OUT/compare.html",
    "finetune-report": f"finetune RTD -t questions.json --layers 1,3 --report OUT/finetune.html {SHORT}",
    "find-models": f"find RTD MLM -t pairs-train.csv --budget 12% --report OUT/find-models.html {QUICK}",
    "find-other-blocks": f"find RTD -t pairs-train.csv --budget 12% --other-blocks 1,3 {QUICK}",
    "find-report": f"find RTD -t pairs-train.csv --budget 12% --against-last 1 --report OUT/find.html {QUICK}",
    "summarize-report": "score RTD -t articles.jsonl --report OUT/summarize.html",
    "retrieve-report": "score RTD MLM -t beir --report OUT/retrieve.html",
    "check-text": "check OUT/vit -t digits",
    "extract-text": "extract OUT/llama --texts texts.txt",
    "metrics-text": "predict RTD --texts texts.txt --readings",
    "compare-text": "compare RTD MLM -t pairs-train.csv",
    "compare-several-text": "compare RTD MLM OUT/modernbert --texts texts.txt --measure procrustes",
    "predict-text": "predict RTD -r MLM -t pairs-train.csv",
    "probe-text": "probe RTD -t class-train.tsv",
    "score-text": "score RTD -t pairs-train.csv",
    "score-questions-text": "score RTD -t questions.json",
    "across-text": "score RTD -t pairs-train.csv -t same-train.tsv -t class-train.tsv",
    "retrieve-text": "score RTD MLM -t beir",
    "summarize-text": "score RTD -t articles.jsonl",
    "finetune-text": f"finetune RTD -t pairs-train.csv --layers 0,2 --save-models {QUICK}",
    "finetune-entities-text": f"finetune RTD -t entities --layers 1,3 {SHORT}",
    "scan-text": f"finetune --scan RTD -t pairs-train.csv --save-models {QUICK}",
    "find-text": f"find RTD -t pairs-train.csv --budget 12% --against-last 1 {QUICK}",
    "chain-text": "lab run chain.toml",
}
"""By name; ^ stands for a space within an argument, and * is for what is there."""


def main() -> None:
    """Run the commands and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="", help="names of commands that begin so")
    options = parser.parse_args()
    out = options.out.resolve()
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "LAYERPROBE_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    subprocess.run([sys.executable, "-c", LANGUAGE_PAIRS, str(work)], check=True, env=environment, cwd=ROOT)
    subprocess.run([sys.executable, "-c", TINY_MODELS, str(work)], check=True, env=environment, cwd=ROOT)
    _write_later_kinds(work)
    places = _places(work)
    for toml in work.glob("*.toml"):
        toml.write_text(_filled(toml.read_text(), places))
    for name, command in COMMANDS.items():
        if name.startswith(options.only):
            _record(name, command, work, out, places, environment)
    if not options.only:
        (out / "store.json").write_text(json.dumps(_store(work / "cache"), indent=1))
    if options.against is not None:
        sys.exit(_compare(options.against.resolve(), out))


def _places(work: Path) -> dict[str, str]:
    code = "from layerprobe.embedded import embedded_model as m; print(m('rtd'), m('mlm'))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return {"RTD": found[0], "MLM": found[1], "OUT": str(work)}


def _filled(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = re.sub(rf"\b{name}\b", place, text)
    return text


# ---- files of the kinds of tasks that have a layout of their own ------------------------------------------


def _write_later_kinds(work: Path) -> None:
    """Write a file or folder for each of `LATER`, and images with captions, of the sentences of the pairs."""
    rows = {name: _rows(work / f"pairs-{name}.csv") for name in ("train", "dev", "test")}
    for name, pairs in rows.items():
        texts = [first for first, _, _ in pairs]
        _write_table(work / "values" / f"{name}.csv", [("text", "value"), *((text, _length(text)) for text in texts)])
        _write_words(work, name, [text.split() for text in texts])
        _write_table(work / "triplets" / f"{name}.csv", [("anchor", "positive", "negative"), *_triplets(pairs)])
    _write_beir(work / "beir", rows)
    texts = [first for pairs in rows.values() for first, _, _ in pairs]
    _write_lines(work / "articles.jsonl", map(json.dumps, _articles(texts)))
    (work / "questions.json").write_text(json.dumps(_squad(texts)))
    images = sorted((work / "digits").rglob("*.png"))
    captions = [(str(image.relative_to(work)), text) for image, text in zip(images, texts, strict=False)]
    _write_table(work / "captions.csv", [("image", "caption"), *captions])


def _rows(path: Path) -> list[tuple[str, str, float]]:
    with path.open(newline="") as file:
        return [(first, second, float(score)) for first, second, score in csv.reader(file)]


def _write_table(path: Path, rows: Iterable[tuple[Any, ...]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def _length(text: str) -> float:
    """Return the mean length of the words of a text."""
    words = text.split()
    return round(sum(map(len, words)) / len(words), 2)


def _write_words(work: Path, name: str, sentences: list[list[str]]) -> None:
    """Write sentences with what follows an article as an entity, and with a tag for how a word ends."""
    lines, tagged = [], []
    for words in sentences:
        begun = [{"la": "B-known", "un": "B-new"}.get(word, "O") for word in words]
        after = ["O", *(tag.replace("B-", "I-") for tag in begun[:-1])]
        names = [tag if tag != "O" else last for tag, last in zip(begun, after, strict=True)]
        lines += [f"{word}\t{tag}" for word, tag in zip(words, names, strict=True)] + [""]
        tags = ["small" if len(word) < 3 else "open" if word[-1] in "aeiou" else "closed" for word in words]
        tagged.append(json.dumps({"tokens": words, "tags": tags}))
    _write_lines(work / "entities" / f"{name}.conll", lines)
    _write_lines(work / "tags" / f"{name}.jsonl", tagged)


def _triplets(pairs: list[tuple[str, str, float]]) -> Iterable[tuple[str, str, str]]:
    """Return sentences with one that says something alike, and the next one of another."""
    for (first, second, score), (_, other, _) in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        if score > 2:
            yield first, second, other


def _write_beir(folder: Path, rows: dict[str, list[tuple[str, str, float]]]) -> None:
    """Write pairs that say something alike as queries and documents, among all second sentences."""
    numbered = [(name, *pair) for name, pairs in rows.items() for pair in pairs]
    corpus = [{"_id": f"d{i}", "title": "", "text": second} for i, (_, _, second, _) in enumerate(numbered)]
    queries = [{"_id": f"q{i}", "text": first} for i, (_, first, _, score) in enumerate(numbered) if score > 2.5]
    _write_lines(folder / "corpus.jsonl", map(json.dumps, corpus))
    _write_lines(folder / "queries.jsonl", map(json.dumps, queries))
    for split in rows:
        judged = [f"q{i}\td{i}\t1" for i, (name, *_, score) in enumerate(numbered) if name == split and score > 2.5]
        _write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *judged])


def _articles(texts: list[str]) -> Iterable[dict[str, list[str]]]:
    """Return documents of four sentences, the first words of one of which are the summary."""
    for i in range(len(texts) // 2):
        document = [texts[(2 * i + k) % len(texts)] for k in range(4)]
        yield {"document": document, "summary": [" ".join(document[i % 4].split()[:6])]}


def _squad(texts: list[str]) -> dict[str, Any]:
    """Return questions in the layout of SQuAD 2.0: which word follows these two? A fifth has no answer."""
    paragraphs = []
    for i, text in enumerate(texts):
        words = text.split()
        place = 2 + i % (len(words) - 2)
        answer = {"text": words[place], "answer_start": len(" ".join(words[:place])) + 1}
        entry = {"id": f"q{i}", "question": " ".join(words[place - 2 : place]), "is_impossible": i % 5 == 0}
        paragraphs.append({"context": text, "qas": [{**entry, "answers": [answer] if i % 5 else []}]})
    return {"version": "v2.0", "data": [{"title": "golden", "paragraphs": paragraphs}]}


# ---- one command ------------------------------------------------------------------------------------------


def _record(
    name: str, command: str, work: Path, out: Path, places: dict[str, str], environment: dict[str, str]
) -> None:
    given = [_filled(part, places).replace("^", " ") for part in command.split()]
    arguments = [each for part in given for each in (_globbed(part) if "*" in part else [part])]
    if not name.endswith("-text"):
        arguments.append("--json")
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "layerprobe_cli.main", *arguments],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        value: Any = json.loads(done.stdout)
    except ValueError:
        value = done.stdout.splitlines()
    said = [line for line in done.stderr.splitlines() if not PROGRESS.search(line)]
    record = {"code": done.returncode, "stdout": _steady(value), "stderr": _steady(said)}
    pages = [Path(part) for part in arguments if part.endswith(".html") and Path(part).exists()]
    if pages:
        record["tables"] = _steady([_tables(page) for page in pages])
    text = json.dumps(record, indent=1)
    for place, path in sorted(places.items(), key=lambda item: -len(item[1])):
        text = text.replace(path, place)
    (out / f"{name}.json").write_text(text)
    print(f"{name}: exit code {done.returncode}, {time.perf_counter() - start:.0f} s", flush=True)


def _globbed(pattern: str) -> list[str]:
    return sorted(str(path) for path in Path("/").glob(pattern.lstrip("/")))


class _Tables(HTMLParser):
    """The text of the cells of the tables of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Begin a table, a row or a cell."""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        """End a cell."""
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        """Take the text of a cell."""
        if self.inside:
            self.tables[-1][-1][-1] += data


def _tables(page: Path) -> list[list[str]]:
    """Return the rows of each table of a page, with bars between their cells."""
    parser = _Tables()
    parser.feed(page.read_text(encoding="utf-8", errors="replace"))
    tables = []
    for table in parser.tables:
        left_out = {i for i, name in enumerate(table[0]) if VOLATILE.search(name.lower())} if table else set()
        rows = [[" ".join(cell.split()) for i, cell in enumerate(row) if i not in left_out] for row in table]
        tables.append([" | ".join(row) for row in rows])
    return tables


def _steady(value: Any) -> Any:
    """Return a value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if not VOLATILE.search(key)}
    if isinstance(value, str):
        return VOLATILE_WORDS.sub("?", value)
    return [_steady(item) for item in value] if isinstance(value, list) else value


def _store(cache: Path) -> dict[str, str]:
    """Return the digest of every file of numbers in the store; of other files the name."""
    return {
        str(file.relative_to(cache)): hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        if file.suffix == ".safetensors"
        else ""
        for file in sorted(cache.rglob("*"))
        if file.is_file()
    }


# ---- differences --------------------------------------------------------------------------------------


def _compare(before: Path, after: Path) -> int:
    different = 0
    for file in sorted(before.glob("*.json")):
        other = after / file.name
        if not other.exists():
            continue
        lines = list(_differences(json.loads(file.read_text()), json.loads(other.read_text()), ""))
        different += bool(lines)
        for line in lines[:12]:
            print(f"{file.stem}{line}")
        if len(lines) > 12:
            print(f"{file.stem}: {len(lines) - 12} more differences")
    print(f"{different} outputs differ")
    return int(different > 0)


def _differences(a: Any, b: Any, where: str) -> Any:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            if key not in a or key not in b:
                yield f"{where}.{key}: only {'before' if key in a else 'after'}"
            else:
                yield from _differences(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differences(x, y, f"{where}[{i}]")
    elif a != b:
        yield f"{where}: {str(a)[:160]!r} -> {str(b)[:160]!r}"


if __name__ == "__main__":
    main()
