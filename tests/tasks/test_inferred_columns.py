"""Files whose headers say nothing to layerprobe: what their columns are is inferred, or asked."""

from pathlib import Path

import pandas
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.loading import load_task, load_texts
from layerprobe.tasks.tables import read_table

SUBJECTS = ("Le chat", "Une élève", "Der Bäcker", "La niña", "Un chien")
PLACES = ("traverse la rue", "wartet vor der Tür", "mira la montaña", "répare son vélo")
TEXTS = [f"{subject} {place} {time}." for subject in SUBJECTS for place in PLACES for time in ("à midi", "spät", "hoy")]
NOTES = [i % 11 / 2 for i in range(60)]


def write(path: Path, header: str, *columns: list, encoding: str = "utf-8") -> Path:
    lines = [header, *(";".join(map(str, row)) for row in zip(*columns, strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def decimal(numbers: list) -> list[str]:
    return [str(number).replace(".", ",") for number in numbers]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_pairs_with_a_score_and_a_row_number(tmp_path: Path, encoding: str) -> None:
    header, numbers = "n°;Première phrase;Deuxième phrase;Note", list(range(1, 61))
    path = write(tmp_path / "p.csv", header, numbers, TEXTS, TEXTS[::-1], decimal(NOTES), encoding=encoding)
    task = load_task(path)
    assert (task.kind, task.score_range, len(task.train)) == ("sts", (0, 5), 48)
    assert "texts in Première phrase and Deuxième phrase, target in Note; --" in task.notes[0]
    assert "columns choose" in task.notes[0]
    assert len(load_texts(path).texts) == 120
    assert load_task(path, columns="Première phrase,Deuxième phrase,Note").digest == task.digest


def test_a_row_number_is_no_score(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "n°;Satz A;Satz B", list(range(1, 61)), TEXTS, TEXTS[::-1])
    with pytest.raises(TaskError, match=r"columns n°, Satz A, Satz B: n° numbers the rows, name first,second,score"):
        load_task(path)
    assert len(load_task(path, columns="Satz A,Satz B,n°", score_range=(0, 100)).train) == 48


@pytest.mark.parametrize("header", ["Bewertungstext;Stimmung", "Reseña;Opinión"])
def test_a_text_with_few_labels_is_classified(tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "c.csv", header, TEXTS, ["gut", "schlecht", "schlecht"] * 20)
    task = load_task(path)
    assert (task.kind, task.labels) == ("classification", ("gut", "schlecht"))
    assert len(load_texts(path).texts) == 60
    rows = path.read_text().splitlines(keepends=True)[1:]
    (tmp_path / "headless.csv").write_text("".join(rows))
    assert load_task(tmp_path / "headless.csv").digest == task.digest, "the first row is a text, not names"


def test_pairs_with_labels_are_known_by_the_names_of_their_texts(tmp_path: Path) -> None:
    labels = ["Folge", "Widerspruch", "neutral"] * 20
    assert load_task(write(tmp_path / "a.csv", "Satz A;Satz B;Urteil", TEXTS, TEXTS[::-1], labels)).kind == "entailment"
    with pytest.raises(TaskError, match=r"choose --kind entailment --columns 'Pro,Contra,Urteil', or --kind classif"):
        load_task(write(tmp_path / "b.csv", "Pro;Contra;Urteil", TEXTS, TEXTS[::-1], labels))


def test_the_other_splits_are_read_as_the_train_split(tmp_path: Path) -> None:
    write(tmp_path / "x-train.csv", "Frage A;Frage B;Urteil", TEXTS, TEXTS[::-1], ["ja", "nein", "offen"] * 20)
    write(tmp_path / "x-test.csv", "Urteil;Frage A;Frage B", ["ja", "nein", "offen", "ja"], TEXTS[:4], TEXTS[4:8])
    assert load_task(tmp_path).test.sides == (tuple(TEXTS[:4]), tuple(TEXTS[4:8]))


@pytest.mark.parametrize(
    ("header", "columns", "ways"),
    [
        (
            "título;reseña;estrellas",
            (TEXTS, [4 * text for text in TEXTS], [i % 5 + 1 for i in range(60)]),
            "sts --columns 'título,reseña,estrellas', or --kind classification --columns 'título,estrellas', or",
        ),
        (
            "texte;langue;valeur",
            (TEXTS, ["fr", "de", "es"] * 20, NOTES),
            "regression --columns 'texte,valeur', or --kind classification --columns 'texte,langue'",
        ),
        (
            "Satz 1;Satz 2;Urteil",
            (TEXTS, TEXTS[::-1], [0, 1, 2] * 20),
            "sts --columns 'Satz 1,Satz 2,Urteil', or --kind entailment --columns 'Satz 1,Satz 2,Urteil'",
        ),
        (
            "Satz 1;Satz 2;Ähnlichkeit;Alter",
            (TEXTS, TEXTS[::-1], NOTES, [i % 7 * 3 for i in range(60)]),
            "sts --columns 'Satz 1,Satz 2,Ähnlichkeit', or --kind sts --columns 'Satz 1,Satz 2,Alter'",
        ),
    ],
)
def test_of_several_readings_none_is_taken(tmp_path: Path, header: str, columns: tuple, ways: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task(write(tmp_path / "a.csv", header, *columns))
    assert f"it has the columns {header.replace(';', ', ')}: choose --kind {ways}" in str(caught.value)


def test_a_frame_that_cannot_be_understood_has_its_columns_named() -> None:
    frame = pandas.DataFrame({"título": TEXTS, "cuerpo": [3 * text for text in TEXTS]})
    for load in (load_task, load_texts):
        with pytest.raises(TaskError, match=r"data: cannot tell .* it has the columns título, cuerpo"):
            load(frame)


def test_the_first_row_of_a_split_is_one_where_train_has_no_header(tmp_path: Path) -> None:
    labels = ["gut", "schlecht", "mittel"]
    write(tmp_path / "train.csv", "Ein Text;gut", TEXTS, labels * 20)
    write(tmp_path / "dev.csv", "Hallo du;mittel", TEXTS[:5], ["gut", "schlecht", "gut", "schlecht", "gut"])
    for columns in (None, "0,1"):
        assert "Hallo du" in load_task(tmp_path / "train.csv", columns=columns, keep_overlaps=True).validation.first
    write(tmp_path / "dev.csv", "a;b", TEXTS[:5], ["gut", "schlecht", "gut", "schlecht", "gut"])
    assert len(load_task(tmp_path / "train.csv", keep_overlaps=True).validation) == 5


def test_numbers_that_pandas_has_as_names_are_no_row(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.csv", list(zip(TEXTS, ["gut", "schlecht", "schlecht"] * 20, strict=True))
    pandas.DataFrame(rows).to_csv(path, index=False)
    task = load_task(path)
    assert task.digest == load_task(rows).digest == load_task(path, columns="0,1").digest
    assert "numbers as the names of columns" in task.notes[0]
    path.write_text("0,1,2\n1,5,0\n2,6,1\n")
    assert len(read_table(path).rows) == 3
