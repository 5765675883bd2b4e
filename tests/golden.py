"""What the command line prints, written down to be compared across a change that should not alter a number.

    python tests/golden.py OUT             runs every command on the embedded pair and writes OUT/*.json
    python tests/golden.py OUT --against BEFORE

The second form also prints what differs from an earlier folder. Times, versions and places are left out. No test: it
takes some minutes, and there is nothing to compare with but another revision.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VOLATILE = re.compile(
    r"seconds|created|peak_memory|tokens_per_second|texts_per_second|^versions$|hardware|bytes|modified"
)
LANGUAGE_PAIRS = """
from layerprobe.embedded.pair import embedded_task
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
(out / "sweep.toml").write_text('''layers = [1, 4]
seeds = 2
[[models]]
id = "RTD"
[[models]]
id = "MLM"
layers = [2]
[[tasks]]
source = "pairs-train.csv"
[[tasks]]
source = "class-train.tsv"
kind = "classification"
[protocol]
epochs = 1
learning_rate = 3e-4
''')
(out / "chain.toml").write_text('''model = "RTD"
reference = "MLM"
layers = [1, 3]
seeds = 2
control = [0]
[[step]]
adapt = "texts.txt"
max_steps = 2
batch_size = 8
accumulation = 1
[[step]]
finetune = "same-train.tsv"
epochs = 1
learning_rate = 3e-4
[[step]]
finetune = "pairs-train.csv"
epochs = 1
learning_rate = 3e-4
''')
(out / "study.toml").write_text('''objectives = ["mlm", "rtd", "random"]
generator_sizes = [0.5]
finetuning_seeds = 2
[sizes]
s = { n_blocks = 2, hidden_size = 8, heads = 2, intermediate_size = 16 }
[pretraining]
steps = 3
batch_size = 8
max_length = 64
held_out = 20
[task]
source = "language"
examples = [24, 20, 20]
[budget.gentle]
epochs = 1
[budget.fast]
epochs = 1
learning_rate = 1e-2
''')
"""
QUICK = "--epochs 1 --learning-rate 3e-4 --seeds 3"
MEASURES = ("mutual-knn", "cknna", "rsa", "procrustes", "svcca", "pwcca")
COMMANDS: dict[str, str] = {
    "doctor": "doctor RTD",
    "extract": "extract RTD --texts texts.txt",
    "extract-cls": "extract RTD --texts texts.txt --pooling cls --prompt la --max-length 9",
    "compare": "compare RTD MLM -t pairs-train.csv",
    "compare-alone": "compare RTD --texts texts.txt",
    "compare-zscore": "compare RTD MLM --texts texts.txt --normalize zscore --alignment best-match",
    "compare-rbf": "compare RTD MLM --texts texts.txt --kernel rbf --bandwidth 0.8",
    "compare-biased": "compare RTD MLM --texts texts.txt --estimator biased --no-intervals",
    "compare-null": "compare RTD MLM --texts texts.txt --permutations 39",
    "compare-documents": "compare RTD MLM --texts documents.csv --documents source",
    "compare-several": "compare RTD MLM RTD --texts texts.txt",
    **{f"compare-{name}": f"compare RTD MLM --texts texts.txt --measure {name}" for name in MEASURES},
    "predict-task": "predict RTD -r MLM -t pairs-train.csv",
    "predict-texts": "predict RTD --texts texts.txt",
    "predict-words": "predict RTD --texts words.txt",
    "predict-documents": "predict RTD --texts documents.csv --documents source",
    "predict-plateau": "predict RTD -r MLM -r RTD --texts texts.txt --rule plateau^of^CKA",
    "predict-several": "predict RTD -r MLM -r RTD --texts texts.txt",
    "predict-logistic": "predict RTD --texts texts.txt --rule logistic^on^InfoNCE,^effective^rank,^mean^cosine",
    "predict-labels": "predict RTD -t pairs-train.csv --rule best^layer^by^probe",
    "metrics": "metrics RTD --texts texts.txt",
    "score-sts": "score RTD -t pairs-train.csv",
    "score-paraphrase": "score RTD -t same-train.tsv",
    "score-entailment": "score RTD -t relation-train.tsv",
    "score-classification": "score RTD -t class-train.tsv --split validation",
    "retrieve": "retrieve RTD -t queries.csv",
    "profile": "profile RTD --layers 0,4,8 --lengths 8,16 --batch-sizes 1,4 --rounds 1 --repeats 1 --warmup 0",
    "finetune": f"finetune RTD -t pairs-train.csv --layers 0,2 --save-models {QUICK}",
    "finetune-paraphrase": f"finetune RTD -t same-train.tsv --layers 2 {QUICK}",
    "finetune-entailment": f"finetune RTD -t relation-train.tsv --layers 2 {QUICK}",
    "finetune-classification": f"finetune RTD -t class-train.tsv --layers 2 {QUICK}",
    "confirm": f"confirm RTD -r MLM -t pairs-train.csv {QUICK}",
    "scan": f"scan RTD -t pairs-train.csv --save-models {QUICK}",
    "find": f"find RTD -t pairs-train.csv --budget 12% --against-last 1 {QUICK}",
    "run": f"run RTD -r MLM -t pairs-train.csv --layers 3 --reference-layers 2 --out OUT/run {QUICK}",
    "run-alone": "run RTD -t class-train.tsv --no-fine-tuning --out OUT/run-alone",
    "report": "report OUT/run/study.json -o OUT/report.html",
    "sweep-plan": "sweep sweep.toml --dry-run",
    "sweep": "sweep sweep.toml --report OUT/sweep.html",
    "chain-plan": "chain chain.toml --dry-run",
    "chain": "chain chain.toml --report OUT/chain.html",
    "adapt": "adapt RTD --texts texts.txt -o OUT/adapted --max-steps 2 --batch-size 8 --accumulation 1",
    "pretrain": "pretrain OUT/pretrained --corpus language --objective electra-15 --size tiny --steps 2 --batch-size 4",
    "lab-plan": "lab run study.toml --out OUT/lab --dry-run",
    "lab": "lab run study.toml --out OUT/lab",
    "export": "export RTD OUT/exported --layer 4 --study OUT/run/study.json",
    "bench-predictors": "bench-predictors",
    "bench-predictors-tuned": "bench-predictors --tuned",
    "reproduce-plan": "reproduce table1 --dry-run",
    "cache": "cache list",
}
"""By name; ^ stands for a space within an argument."""


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
    subprocess.run([sys.executable, "-c", LANGUAGE_PAIRS, str(work)], check=True, env=environment)
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
    code = "from layerprobe.embedded.pair import embedded_model as m; print(m('rtd'), m('mlm'))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return {"RTD": found[0], "MLM": found[1], "OUT": str(work)}


def _filled(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = re.sub(rf"\b{name}\b", place, text)
    return text


def _record(
    name: str, command: str, work: Path, out: Path, places: dict[str, str], environment: dict[str, str]
) -> None:
    arguments = [_filled(part, places).replace("^", " ") for part in command.split()]
    if command.split()[0] != "report":
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
        value = done.stdout
    text = json.dumps({"code": done.returncode, "stdout": _steady(value), "stderr": done.stderr}, indent=1)
    for place, path in sorted(places.items(), key=lambda item: -len(item[1])):
        text = text.replace(path, place)
    (out / f"{name}.json").write_text(text)
    print(f"{name}: exit code {done.returncode}, {time.perf_counter() - start:.0f} s", flush=True)


def _steady(value: Any) -> Any:
    """Return a value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if not VOLATILE.search(key)}
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
