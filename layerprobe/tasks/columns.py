"""Finding the columns of texts and of the score or label in a table. Knows names and layouts, not files."""

import dataclasses
import itertools
import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from layerprobe.errors import TaskError, option
from layerprobe.tasks.cells import is_number, label_cell, parse_score
from layerprobe.tasks.kind import KINDS, Kind, detect_kind
from layerprobe.tasks.tables import Table

Columns = str | Sequence[str | int]
PAIR, SINGLE = "first,second,score", "text,label"

# Lower case, without spaces, underscores and hyphens.
SENTENCE_NAMES = (
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("first", "second"),
    ("s1", "s2"),
    ("#1string", "#2string"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("word1", "word2"),
    ("sent1", "sent2"),
    ("text", "textpair"),
    ("question", "sentence"),
)
TEXT_NAMES = ("text", "texts", "sentence", "sentences")
ID_NAMES = ("id", "queryid", "corpusid", "documentid", "docid", "passageid", "qid", "pid")
ROW_NAMES = (*ID_NAMES, "", "index", "row", "nr", "no", "number", "pairid", "sentenceid", "unnamed:0", "#")
"""Usual names of columns that number rows."""
TITLE_NAMES = ("title",)
QUERY_NAMES = ("query", "queries", "question", "questions", "anchor")
DOCUMENT_NAMES = ("document", "documents", "passage", "passages", "answer", "positive", "context")
QUERY_ID_NAMES = ("queryid", "qid", "query")
DOCUMENT_ID_NAMES = ("corpusid", "documentid", "docid", "passageid", "pid", "document")
NEGATIVE_NAME = "negative"
"""First word of the names of columns with hard negatives."""
RELEVANCE_NAMES = ("relevance", "score", "label", "gain", "rel")


def task_columns(table: Table, columns: Columns | None, kind: str | None) -> tuple[Table, tuple[int, ...]]:
    """Return the table without its header row, and the places of the first and second text and the target.

    The columns are "first,second,target", or "text,label" for single texts, as names or as indices from 0. If they
    are None, usual names are recognised, and the rest is inferred from the cells, as the table's notes then
    say; without a kind, a pair takes precedence over a single text.
    """
    asked_kind = None if kind is None else KINDS[kind]
    if columns is None:
        named = table if any(is_number(cell) for cell in table.rows[0]) else table.with_header()
        by_name = _known_columns(named, asked_kind)
        if by_name is not None:
            return _with_unused(named, by_name) if asked_kind is None else named, by_name
        *texts, target = by_name = _inferred_columns(named, asked_kind)
        if named.header is not None and named.header[target] in {row[target].strip() for row in named.rows}:
            named = table  # the first row has a label, so it is no header
        return dataclasses.replace(named, inferred=_reading(named, texts, target)), by_name
    widths = (2, 3) if asked_kind is None else (3,) if asked_kind.pairs else (2,)
    layouts = f"three different columns as {PAIR}, or two different columns as {SINGLE}"
    if asked_kind is not None:
        layouts = f"{'three' if asked_kind.pairs else 'two'} different columns as {asked_kind.layout}"
    table, chosen = _requested(table, columns, layouts, widths)
    if table.header is None:
        first, *others = (row[named_column(table, chosen[-1])] for row in table.rows)
        # the first cell of a target column is a name if it is no number, and occurs nowhere else in the column
        if not is_number(first) and first not in others:
            table = table.with_header()
    return table, tuple(named_column(table, column) for column in chosen)


def text_columns(table: Table, columns: Columns | None) -> tuple[Table, tuple[int, ...]]:
    """Return the table without its header row, and the places of its texts; raise TaskError if unknown."""
    chosen = list[str]()
    if columns is not None:
        table, chosen = _requested(table, columns)
    if table.header is None and _looks_like_header(table):
        table = table.with_header()
    if columns is None:
        return _known_text_columns(table)
    return table, tuple(named_column(table, column) for column in chosen)


def named_column(table: Table, column: str) -> int:
    """Return the place of a column, by its name or index from 0; raise TaskError if it is missing or has lists."""
    place = place_of(table, column)
    table.check_cells([place])
    return place


def place_of(table: Table, column: str) -> int:
    """Return the place of a column, by its name or index from 0; raise TaskError if it is missing."""
    if table.header is not None and column in table.header:
        if table.header.count(column) > 1:
            raise _twice(table, column)
        return table.header.index(column)
    if _is_index(column) and int(column) < table.width:
        return int(column)
    if table.header is None and not any(map(is_number, table.rows[0])):
        table = table.with_header()
    raise TaskError(f"{table.name} has no column {column!r}; it has {_shown(table)}")


def record_columns(table: Table) -> tuple[int, int | None, int]:
    """Return the places of the id, the title and the text of records; TaskError if id or text is missing."""
    header = table.header or ()
    number, text, title = (_named(header, names) for names in (ID_NAMES, TEXT_NAMES, TITLE_NAMES))
    if number is None or text is None:
        raise TaskError(
            f"{table.name}: expected the columns _id and text, and optionally title; it has {_shown(table)}"
        )
    _distinct(table, (number, text) if title is None else (number, text, title))
    return number, title, text


def judgement_columns(table: Table) -> tuple[Table, tuple[int, ...]]:
    """Return relevance judgements without their header row, and the places of query id, document id and gain.

    Three columns without a header are in that order; of four, as in trec_eval, the second is ignored. Other tables need
    a header with usual names; raise TaskError if it is missing.
    """
    if table.header is None and is_number(table.rows[0][-1]) and table.width in (3, 4):
        return table, (0, 1, 2) if table.width == 3 else (0, 2, 3)
    table = table.with_header()
    columns = [_named(table.header or (), names) for names in (QUERY_ID_NAMES, DOCUMENT_ID_NAMES, RELEVANCE_NAMES)]
    if None in columns:
        raise TaskError(f"{table.name}: expected the columns query-id, corpus-id and score; it has {_shown(table)}")
    return table, _distinct(table, tuple(column for column in columns if column is not None))


def declared_columns(table: Table, columns: Columns | None, kind: Kind) -> tuple[Table, tuple[int, ...]]:
    """Return a table without its header row, and the places of the columns that a kind declares, in its order.

    They are requested in that order, or found by usual names; cells may be lists. Raise TaskError if one is missing.
    """
    layout = ",".join(kind.columns)
    if columns is not None:
        table, chosen = _requested(table, columns, f"different columns as {layout}", [len(kind.columns)])
        return table, tuple(place_of(table, column) for column in chosen)
    table = table.with_header()
    places = [_named(table.header or (), names) for names in kind.columns.values()]
    if None in places:
        raise _unknown_layout(table, layout)
    return table, tuple(place for place in places if place is not None)


def training_columns(
    table: Table, columns: Columns | None, *, negatives: tuple[int, int]
) -> tuple[Table, tuple[int, ...], int | None]:
    """Return a table of training examples without its header row, its columns of texts, and that of the gain, if any.

    The texts are query (or anchor), positive (or document) and from `negatives[0]` to `negatives[1]` negatives. By
    default usual names are recognised; those of negatives begin with that word. Requested columns are in this order; if
    fewer negatives are allowed, a last column of numbers is the gain. Raise TaskError if the layout is unknown.
    """
    least, most = negatives
    layout = "anchor,positive,negative" if least else "query,document, and optionally the relevance"
    if most > least:
        layout = "query,positive, and optionally negatives or the relevance"
    if columns is None:
        table = table.with_header()
        header = table.header or ()
        query, document = (_named(header, names) for names in (QUERY_NAMES, DOCUMENT_NAMES))
        farther = [i for i, name in enumerate(header) if most and plain_name(name).startswith(NEGATIVE_NAME)]
        if query is None or document is None or not least <= len(farther) <= most:
            raise _unknown_layout(table, layout.partition(", and")[0])
        gain = None if least else _named(header, RELEVANCE_NAMES)
        texts = (query, document, *farther)
        _distinct(table, texts if gain is None else (*texts, gain))
        return table, texts, gain
    widths = range(least + 2, most + 3 if least else most + 4)
    table, chosen = _requested(table, columns, f"different columns as {layout}", widths)
    if table.header is None and _looks_like_header(table):
        table = table.with_header()
    places = tuple(named_column(table, column) for column in chosen)
    if not least and len(places) > 2 and all(is_number(row[places[-1]]) for row in table.rows):
        return table, places[:-1], places[-1]
    if len(places) > most + 2:
        first = next(i for i, row in enumerate(table.rows) if not is_number(row[places[-1]]))
        parse_score(table.rows[first][places[-1]], table.place(first))
    return table, places, None


def _looks_like_header(table: Table) -> bool:
    """Return whether the first row names a text column, or has words where other rows have numbers or other labels."""
    first, *rest = table.rows
    if {plain_name(str(cell)) for cell in first} & {*TEXT_NAMES, *itertools.chain(*SENTENCE_NAMES)}:
        return True
    for i, name in enumerate(first):
        if i in table.nested:
            continue
        others = {row[i].strip() for row in rest}
        numeric = not is_number(name) and bool(rest) and all(map(is_number, others))
        if numeric or (_are_labels(others, len(rest)) and name.strip() not in others):
            return True
    return False


def _requested(
    table: Table, columns: Columns, expected: str = "", widths: Collection[int] = ()
) -> tuple[Table, list[str]]:
    """Return the table, with its first row as header if columns are requested by name, and the requested columns.

    Raise TaskError, with `expected`, if two are the same, or their number is not among `widths`.
    """
    items: Iterable[str | int] = columns.split(",") if isinstance(columns, str) else columns
    names = [str(item).strip() for item in items]
    if expected and (len(set(names)) != len(names) or len(names) not in widths):
        raise TaskError(f"expected {expected}, got {','.join(names)!r}")
    return table if all(map(_is_index, names)) else table.with_header(), names


def _is_index(column: str) -> bool:
    return re.fullmatch("[0-9]{1,6}", column) is not None


def _known_columns(table: Table, kind: Kind | None) -> tuple[int, ...] | None:
    """Return the columns with usual names; None if one is missing."""
    texts = _named_texts(table, kind)
    target = _named(table.header or (), _target_names(kind, texts))
    if texts is None or target is None:
        return None
    return _distinct(table, (*texts, target))


def _named_texts(table: Table, kind: Kind | None) -> tuple[int, ...] | None:
    texts: tuple[int, ...] | None = _named_sentences(table.header or ()) if kind is None or kind.pairs else None
    if texts is None and (kind is None or not kind.pairs):
        single = _named(table.header or (), TEXT_NAMES)
        texts = None if single is None else (single,)
    return texts


def _target_names(kind: Kind | None, texts: Sequence[int] | None) -> list[str]:
    kinds = KINDS.usable().values() if kind is None else (kind,)
    return [name for kind in kinds if not texts or kind.pairs == (len(texts) == 2) for name in kind.target_columns]


# ---- by content -----------------------------------------------------------------------------------------


Role = Literal["text", "score", "label", "number"]
"""Role of a column: a text, a score, a label (one of few short texts), or a row number."""


def _roles(table: Table) -> dict[Role, list[int]]:
    """Return the possible columns by role, judged by their cells; constants and lists have no role."""
    roles: dict[Role, list[int]] = {"text": [], "score": [], "label": [], "number": []}
    for i in range(table.width):
        if i in table.nested:
            continue
        cells = [cell for row in table.rows if (cell := row[i].strip())]
        distinct = set(cells)
        if _counts_up(cells) or (table.header is not None and plain_name(table.header[i]) in ROW_NAMES):
            roles["number"].append(i)
        elif cells and 2 * sum(map(is_number, cells)) > len(cells):  # most cells; a bad one is reported as a bad score
            roles["score"].append(i)
        elif _are_labels(distinct, len(cells)):
            roles["label"].append(i)
        elif len(distinct) > 1 or 0 < len(cells) < _FEW_ROWS:
            roles["text"].append(i)
    if roles["score"] and not roles["text"]:  # texts that repeat often
        roles["text"], roles["label"] = roles["label"], []
    texts = roles["text"]
    worded = [i for i in texts if not all(re.fullmatch(r"(?=.*\d)\S*", row[i].strip()) for row in table.rows)]
    roles["text"] = worded or texts
    return roles


def _are_labels(distinct: set[str], n: int) -> bool:
    return 2 <= len(distinct) <= n / 2 and max(map(len, distinct)) <= _LONGEST_LABEL


_LONGEST_LABEL, _FEW_ROWS = 50, 4
_SHOWN, _COLUMNS, _CELLS = 4, 40, 8
"""Largest numbers of layouts, of column names, and of cells of a first row in an error message."""


def _inferred_columns(table: Table, kind: Kind | None) -> tuple[int, ...]:
    """Return the columns of the only possible layout of a table; raise TaskError if there is none, or several."""
    roles, texts = _roles(table), _named_texts(table, kind)
    layout = PAIR if kind is None else kind.layout
    if texts is None and layout == PAIR and _ranking_kind(table.header or ()):
        raise _unknown_layout(table, layout)
    targets = (*roles["score"], *roles["label"])
    if kind is not None:
        few = max(4, len(table.rows)) / 2  # largest number of different labels
        labels = tuple(i for i in targets if len({row[i] for row in table.rows}) <= few)
        targets = labels if kind.labelled else tuple(roles["score"])
    names = _target_names(kind, texts)
    named = [i for i in targets if table.header is not None and plain_name(table.header[i]) in names]
    readings = list[tuple[str, tuple[int, ...]]]()
    for side in [texts] if texts else _sides(table, roles, kind):
        for target in named or targets:
            cells = {row[target] for row in table.rows}
            kinds = (
                [kind.name]
                if kind
                else _kinds_of(cells, pairs=len(side) == 2, named=bool(named or table.header is None))
            )
            readings += [(name, (*side, target)) for name in kinds]
    if not readings:
        raise _unknown_layout(table, layout)
    if len(readings) > 1:
        ways = [option("kind", name, columns=_option(table, columns)) for name, columns in readings[:_SHOWN]]
        more = f" ({len(readings) - _SHOWN} more)" if len(readings) > _SHOWN else ""
        raise TaskError(
            f"{table.name}: cannot tell which columns are {layout}; it has {_shown(table)}: choose {', or '.join(ways)}"
            f"{more}"
        )
    table.check_cells(readings[0][1])
    return readings[0][1]


def _sides(table: Table, roles: dict[Role, list[int]], kind: Kind | None) -> list[tuple[int, ...]]:
    """Return the columns of texts, or of pairs of texts, that a task of a table could use."""
    singles: list[tuple[int, ...]] = [(i,) for i in roles["text"]]
    pairs: list[tuple[int, ...]] = list(itertools.combinations(roles["text"], 2))
    alike = [
        (a, b) for a, b in itertools.combinations(roles["text"], 2) if _alike(table, a, b, scored=not roles["label"])
    ]
    if kind is not None:
        return singles if not kind.pairs else [*alike] if len(alike) == 1 else pairs
    return pairs if len(pairs) == len(alike) == 1 else pairs + singles


def _alike(table: Table, a: int, b: int, *, scored: bool) -> bool:
    """Return whether two columns are the sides of pairs: similar lengths and, unless pairs have a score, names."""
    short, long = sorted(statistics.median(len(row[i]) for row in table.rows) for i in (a, b))
    names = ("", "") if table.header is None else (table.header[a].lower(), table.header[b].lower())
    words, others = (set(re.findall(r"[^\W\d_]{2,}", name)) for name in names)
    numbered = len(names[0]) > 1 and names[0][:-1] == names[1][:-1]
    return long <= 3 * short and (scored or numbered or bool(words & others))


def _kinds_of(cells: set[str], *, pairs: bool, named: bool) -> list[str]:
    """Return the possible kinds of task for targets; numbers of three classes may be scores if no name decides."""
    first = detect_kind(cells, pairs=pairs)
    distinct = {label_cell(cell) for cell in cells} - {""}
    if named or KINDS[first].labelled or distinct != {"0", "1", "2"}:
        return [first]
    classes = (n for n, kind in KINDS.usable().items() if kind.pairs == pairs and kind.labelled and not kind.loader)
    return [first, *(name for name in classes if KINDS[name].detects(distinct))]


def _reading(table: Table, texts: Sequence[int], target: int | None) -> str:
    of = " and ".join(map(table.column, texts))
    return f"texts in {of}" + ("" if target is None else f", target in {table.column(target)}")


def _with_unused(table: Table, columns: Sequence[int]) -> Table:
    """Return a table with a note on unused columns that could be the target, or the second text of pairs."""
    *texts, target = columns
    names, targets = [plain_name(name) for name in table.header or ()], _target_names(None, texts)
    also = [i for i in range(table.width) if i not in columns and names[i] in targets]
    if len(texts) == 1 and table.width > 2:
        also += [i for i in _roles(table)["text"] if i not in (*columns, *also) and names[i] not in TITLE_NAMES]
    if not also:
        return table
    note = f"{_reading(table, texts, target)}, {' and '.join(map(table.column, sorted(also)))} not used"
    return dataclasses.replace(table, unused=note)


def _option(table: Table, columns: Sequence[int]) -> str:
    """Return columns in the form of `--columns`: by name, or by index if the name is missing or has a comma."""
    names = [str(i) if table.header is None else table.header[i] for i in columns]
    return ",".join(map(str, columns) if any("," in name or not name for name in names) else names)


def _known_text_columns(table: Table) -> tuple[Table, tuple[int, ...]]:
    if table.width == 1:
        table.check_cells([0])
        return table, (0,)
    if (named := _named_texts(table, None)) is not None:
        return table, _distinct(table, named)
    roles = _roles(table)
    scored = table.header is None and len(roles["score"]) == 1 and not roles["label"]
    texts = tuple(roles["text"])
    if len(texts) == 1 or (len(texts) == 2 and _alike(table, texts[0], texts[1], scored=scored)):
        return dataclasses.replace(table, inferred=_reading(table, texts, None)), texts
    raise _unknown_layout(table, "the texts")


def _named_sentences(header: Sequence[str]) -> tuple[int, ...] | None:
    names = [plain_name(name) for name in header]
    return next(((names.index(a), names.index(b)) for a, b in SENTENCE_NAMES if {a, b} <= set(names)), None)


def _named(header: Sequence[str], terms: Sequence[str]) -> int | None:
    names = [plain_name(name) for name in header]
    return next((names.index(name) for name in terms if name in names), None)


def _distinct(table: Table, columns: tuple[int, ...]) -> tuple[int, ...]:
    """Return columns found by name; raise TaskError if a name is not unique, or a column has lists."""
    names = [plain_name(name) for name in table.header or ()]
    for column in columns:
        if names.count(names[column]) > 1:
            raise _twice(table, (table.header or ())[column])
    table.check_cells(columns)
    return columns


def _twice(table: Table, name: str) -> TaskError:
    return TaskError(f"{table.name} has several columns {_short(name)!r}: rename them, or name columns by index from 0")


def plain_name(name: str) -> str:
    """Return a name in lower case, without spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _unknown_layout(table: Table, what: str) -> TaskError:
    if what == PAIR and (kind := _ranking_kind(table.header or ())):
        return TaskError(f"{table.name}: it has {_shown(table)}, which suggest another kind of task: choose {kind}")
    words = what.split(",")
    has_target = words[-1] in ("score", "label", "relevance")
    roles, n_texts = _roles(table), len(words) - has_target
    columns = sorted(roles["text"], key=lambda i: -sum(len(row[i]) for row in table.rows))
    likely = [*sorted(columns[:n_texts]), *[*roles["score"], *roles["label"], *columns[n_texts:]][:has_target]]
    example = f", for example {option('columns', _option(table, likely))}" if len(likely) == len(words) else ""
    numbering = [f"{table.column(i)} numbers the rows, " for i in roles["number"] if has_target]
    advice = f"{''.join(numbering)}name {what} by column or index from 0{example}"
    if what == PAIR and len(columns) > 1 and not (roles["score"] or roles["label"]):
        advice += (
            f"; or choose {option('kind', 'retrieval', columns=_option(table, sorted(columns[:2])))} if one answers "
            "the other"
        )
    return TaskError(f"{table.name}: cannot tell which columns are {what}; it has {_shown(table)}: {advice}")


def _ranking_kind(header: Sequence[str]) -> str:
    """Return the options for the kinds that train on columns with such names; empty if none does."""
    if _named(header, QUERY_NAMES) is None or _named(header, DOCUMENT_NAMES) is None:
        return ""
    negative = any(plain_name(name).startswith(NEGATIVE_NAME) for name in header)
    return " or ".join(option("kind", kind) for kind in ("retrieval", *(["triplets"] if negative else [])))


def _counts_up(cells: Sequence[str]) -> bool:
    """Return whether cells are consecutive whole numbers."""
    if len(cells) < 3 or not all(re.fullmatch(r"[0-9]{1,18}", cell) for cell in cells):
        return False
    return all(int(after) - int(before) == 1 for before, after in itertools.pairwise(cells))


def _shown(table: Table) -> str:
    if table.header is not None:
        names = ", ".join(_short(name) or "(no name)" for name in table.header[:_COLUMNS])
        return f"the columns {names}" + (f" and {len(table.header) - _COLUMNS} more" * (len(table.header) > _COLUMNS))
    first = table.rows[0]
    cells = ", ".join(f"{i}: {_short(cell)!r}" for i, cell in enumerate(first[:_CELLS]))
    more = f" and {len(first) - _CELLS} more" if len(first) > _CELLS else ""
    return f"no header and the first row {cells}{more}"


def _short(cell: object) -> str:
    return " ".join(str(cell).split())[:30]
