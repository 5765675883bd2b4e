"""Sentences with tags from files: columns as of CoNLL, JSONL, what is in memory; and what is refused."""

import json
from pathlib import Path

import pytest

from layerprobe.errors import TaskError
from layerprobe.kinds.tokens import TaggedSentences
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task

PART = [("Ann", "B-per"), ("Lee", "I-per"), ("saw", "O"), ("#rome", "B-loc")]


def conll(path: Path, n: int = 60, *, word: str = "w", mark: str = "\t", blank: str = "", between: str = "") -> Path:
    sentences = [[(f"{word}{i}", "O"), *PART] for i in range(n)]
    path.write_text(
        "\n".join("\n".join(f"{w}{mark}{between}{t}" for w, t in s) + f"\n{blank}" for s in sentences) + "\n"
    )
    return path


def sentences_of(task: Task) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    found = set()
    for items in (task.train, task.validation, task.test):
        assert isinstance(items, TaggedSentences)
        found |= {(w, tuple(task.labels[t] for t in tags)) for w, tags in zip(items.words, items.tags, strict=True)}
    return found


EXPECTED = {((f"w{i}", *(w for w, _ in PART)), ("O", *(t for _, t in PART))) for i in range(60)}


def test_sentences_end_at_empty_lines_and_lone_tabs(tmp_path: Path) -> None:
    files = [
        conll(tmp_path / "a.conll"),
        conll(tmp_path / "b.conll", blank="\t"),
        conll(tmp_path / "c.txt", mark=" "),
        conll(tmp_path / "d.conll", mark=" ", between="NN B-NP "),
    ]
    for file in files:
        task = load_task(file)
        assert (task.kind, task.labels, task.primary) == ("entities", ("O", "B-loc", "B-per", "I-per"), "entity f1")
        assert sentences_of(task) == EXPECTED
        assert (len(task.train), len(task.validation), len(task.test)) == (48, 6, 6)
    assert len({load_task(file).digest for file in files}) == 1


@pytest.fixture
def plenty(tmp_path: Path) -> Path:
    return conll(tmp_path / "plenty.conll", n=60)


def test_documents_and_comments_are_left_out(tmp_path: Path, plenty: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("# a comment of several words\n-DOCSTART- O\n\n# another one here\n" + plenty.read_text())
    assert load_task(path).digest == load_task(plenty).digest


def test_jsonl_and_memory_are_read_as_files_of_columns(tmp_path: Path, plenty: Path) -> None:
    expected, records = load_task(plenty), []
    for block in plenty.read_text().strip().split("\n\n"):
        words, tags = zip(*(line.split("\t") for line in block.strip().split("\n")), strict=True)
        records.append({"id": 1, "tokens": words, "ner_tags": tags})
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    assert load_task(path).digest == expected.digest
    assert load_task(records, kind="entities").digest == expected.digest
    with pytest.raises(TaskError, match="cannot tell which columns are words,tags; it has the columns id, tokens, ner"):
        load_task(path, kind="tags")
    assert load_task(path, kind="tags", columns="tokens,ner_tags").primary == "accuracy"


def test_data_sets_name_their_classes(plenty: Path) -> None:
    datasets = pytest.importorskip("datasets")
    task = load_task(plenty)
    assert isinstance(task.train, TaggedSentences)
    tags = datasets.ClassLabel(names=list(task.labels))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(tags)})
    part = {"tokens": list(map(list, task.train.words)), "ner_tags": list(map(list, task.train.tags))}
    loaded = load_task(datasets.Dataset.from_dict(part, features=features), kind="entities")
    assert set(loaded.labels) == set(task.labels)
    without = {**part, "ner_tags": [[-1, *part["ner_tags"][0][1:]], *part["ner_tags"][1:]]}
    with pytest.raises(TaskError, match=r"1 sentence cannot be used: data: 1 with an empty word or tag \(row 1\)"):
        load_task(datasets.Dataset.from_dict(without, features=features), kind="entities")
    with pytest.raises(TaskError, match="expected columns of equal length, got tokens 48, ner_tags 40"):
        load_task({"tokens": part["tokens"], "ner_tags": [["O"] * 5] * 40}, kind="entities")


def test_parts_of_speech_of_universal_dependencies(tmp_path: Path) -> None:
    lines = []
    for i in range(60):
        rows = [("1-2", "du", "_"), ("1", "de", "ADP"), ("2", "le", "DET"), ("2.1", "e", "X"), ("3", f"w{i}", "NOUN")]
        lines.append(f"# sent_id = {i}")
        lines += ["\t".join((number, word, word, tag, *"______")) for number, word, tag in rows]
        lines.append("")
    path = tmp_path / "x.conllu"
    path.write_text("\n".join(lines))
    task = load_task(path)
    assert (task.kind, task.labels) == ("tags", ("ADP", "DET", "NOUN"))
    assert {len(words) for words, _ in sentences_of(task)} == {3}


def test_several_tags_of_a_word_and_runs_without_a_begin_are_counted(tmp_path: Path, plenty: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text(
        plenty.read_text().replace("w3\tO", "w3\tB-loc,B-per").replace("w4\tO\nAnn\tB-per", "w4\tO\nAnn\tI-per")
    )
    task = load_task(path)
    assert task.labels == ("O", "B-loc", "B-per", "I-per")
    warnings = " ".join(task.warnings)
    assert "1 word with several tags (first: B-loc,B-per at" in warnings
    assert "begin without B-: entities, as in seqeval" in warnings
