"""Which columns of a table hold the texts and the score or label. Knows names and layouts, not files."""

import itertools
import re
from collections.abc import Iterable, Sequence

from layerprobe.errors import TaskError
from layerprobe.tasks.kind import KINDS, Kind
from layerprobe.tasks.scores import is_number
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
)
TEXT_NAMES = ("text", "texts", "sentence", "sentences")
ID_NAMES = ("id", "queryid", "corpusid", "documentid", "docid", "passageid", "qid", "pid")
ROW_NAMES = (*ID_NAMES, "", "index", "row", "nr", "no", "number", "pairid", "sentenceid", "unnamed:0", "#")
"""Of columns that number rows."""
TITLE_NAMES = ("title",)
QUERY_NAMES = ("query", "question", "anchor")
DOCUMENT_NAMES = ("document", "passage", "answer", "positive", "context")
QUERY_ID_NAMES = ("queryid", "qid", "query")
DOCUMENT_ID_NAMES = ("corpusid", "documentid", "docid", "passageid", "pid", "document")
NEGATIVE_NAME = "negative"
"""How the names of columns of hard negatives begin."""
RELEVANCE_NAMES = ("relevance", "score", "label", "gain", "rel")


def task_columns(table: Table, columns: Columns | None, kind: str | None) -> tuple[Table, tuple[int, ...]]:
    """Return the table without its header row, and where the first and second text and the target are.

    The columns are "first,second,target", or "text,label" for single texts, as names or as indices from 0. Where they
    are None, those of the kind are detected; without a kind a pair goes before a single text.

    Raises:
        TaskError: If a column is missing or the layout is not known.
    """
    asked = None if kind is None else KINDS[kind]
    if columns is None:
        table = table if any(is_number(cell) for cell in table.rows[0]) else table.with_header()
        return table, _known_columns(table, asked)
    widths = (2, 3) if asked is None else (3,) if asked.pairs else (2,)
    return _chosen(table, columns, widths, _wanted_words(asked), with_target=widths)


def _wanted_words(kind: Kind | None) -> str:
    if kind is None:
        return f"three different columns as {PAIR}, or two different columns as {SINGLE}"
    return f"{'three' if kind.pairs else 'two'} different columns as {kind.layout}"


def _chosen(
    table: Table, columns: Columns, widths: Sequence[int], layouts: str, *, with_target: Sequence[int]
) -> tuple[Table, tuple[int, ...]]:
    """Return the table without its header row and where columns are; of as many as `with_target` one is a target."""
    table, wanted = _asked_for(table, columns)
    if len(set(wanted)) != len(wanted) or len(wanted) not in widths:
        raise TaskError(f"expected {layouts}, got {','.join(wanted)!r}")
    if table.header is None and len(wanted) in with_target:
        first, *others = (row[named_column(table, wanted[-1])] for row in table.rows)
        # the first cell of a target column is a name where it is no number, and nowhere else in the column
        if not is_number(first) and first not in others:
            table = table.with_header()
    return table, tuple(named_column(table, column) for column in wanted)


def text_columns(table: Table, columns: Columns | None) -> tuple[Table, tuple[int, ...]]:
    """Return the table without its header row and where its texts are; raise TaskError if that is not known."""
    table, wanted = (table, []) if columns is None else _asked_for(table, columns)
    if table.header is None and _looks_like_header(table):
        table = table.with_header()
    if columns is None:
        return table, _known_text_columns(table)
    return table, tuple(named_column(table, column) for column in wanted)


def named_column(table: Table, column: str) -> int:
    """Return where a column is, by its name or index from 0; raise TaskError if there is none."""
    if table.header is not None and column in table.header:
        if table.header.count(column) > 1:
            raise _twice(table, column)
        return table.header.index(column)
    if _is_index(column) and int(column) < table.width:
        return int(column)
    raise TaskError(f"{table.name} has no column {column!r}; it has {_shown(table)}")


def record_columns(table: Table) -> tuple[int, int | None, int]:
    """Return where the id, the title and the text of records are; raise TaskError if another than the title is not."""
    header = table.header or ()
    number, text, title = (_named(header, names) for names in (ID_NAMES, TEXT_NAMES, TITLE_NAMES))
    if number is None or text is None:
        raise TaskError(f"{table.name}: expected the columns _id and text, and maybe title; it has {_shown(table)}")
    _distinct(table, (number, text) if title is None else (number, text, title))
    return number, title, text


def judgement_columns(table: Table) -> tuple[Table, tuple[int, ...]]:
    """Return relevance judgements without their header row, and where query id, document id and gain are.

    Three columns without a header are in that order; of four, as trec_eval has them, the second says nothing. Others
    must have a header of usual names; raise TaskError where it has not.
    """
    if table.header is None and is_number(table.rows[0][-1]) and table.width in (3, 4):
        return table, (0, 1, 2) if table.width == 3 else (0, 2, 3)
    table = table.with_header()
    columns = [_named(table.header or (), names) for names in (QUERY_ID_NAMES, DOCUMENT_ID_NAMES, RELEVANCE_NAMES)]
    if None in columns:
        raise TaskError(f"{table.name}: expected the columns query-id, corpus-id and score; it has {_shown(table)}")
    return table, _distinct(table, tuple(column for column in columns if column is not None))


def query_columns(table: Table, columns: Columns | None) -> tuple[Table, tuple[int, ...]]:
    """Return a table of queries with documents without its header row, and where query, document and gain are.

    The columns are "query,document" or "query,document,relevance" as in `task_columns`; without the third all documents
    are relevant to their queries. Raise TaskError if a column is missing or the layout is not known.
    """
    if columns is None:
        table = table.with_header()
        query, document = (_named(table.header or (), names) for names in (QUERY_NAMES, DOCUMENT_NAMES))
        if query is None or document is None:
            raise _unknown_layout(table, "query,document,relevance")
        gain = _named(table.header or (), RELEVANCE_NAMES)
        return table, _distinct(table, (query, document) if gain is None else (query, document, gain))
    layouts = "different columns as query,document,relevance, or query,document"
    return _chosen(table, columns, (2, 3), layouts, with_target=(3,))


def training_columns(
    table: Table, columns: Columns | None, *, negatives: tuple[int, int]
) -> tuple[Table, tuple[int, ...], int | None]:
    """Return a table of training examples without its header row, its columns of texts, and that of the gain, if any.

    The texts are query (or anchor), positive (or document) and from `negatives[0]` to `negatives[1]` negatives. By
    default usual names are known, those of negatives begin with that word. Columns that are asked for are in this
    order; where fewer negatives will do, a last one of numbers is the gain. Raise TaskError if the layout is not known.
    """
    least, most = negatives
    layout = "anchor,positive,negative" if least else "query,positive, and maybe negatives or the relevance"
    if columns is None:
        table = table.with_header()
        header = table.header or ()
        query, document = (_named(header, names) for names in (QUERY_NAMES, DOCUMENT_NAMES))
        farther = [i for i, name in enumerate(header) if plain_name(name).startswith(NEGATIVE_NAME)]
        if query is None or document is None or not least <= len(farther) <= most:
            raise _unknown_layout(table, layout.partition(", and")[0])
        gain = None if least else _named(header, RELEVANCE_NAMES)
        texts = (query, document, *farther)
        _distinct(table, texts if gain is None else (*texts, gain))
        return table, texts, gain
    table, wanted = _asked_for(table, columns)
    if len(set(wanted)) != len(wanted) or not least + 2 <= len(wanted) <= most + 2:
        raise TaskError(f"expected different columns as {layout}, got {','.join(wanted)!r}")
    if table.header is None and _looks_like_header(table):
        table = table.with_header()
    found = tuple(named_column(table, column) for column in wanted)
    if not least and len(found) > 2 and all(is_number(row[found[-1]]) for row in table.rows):
        return table, found[:-1], found[-1]
    return table, found, None


def _looks_like_header(table: Table) -> bool:
    """Return whether the first row names a text column, or has words where all other rows have numbers."""
    first, *rest = table.rows
    if {plain_name(cell) for cell in first} & {*TEXT_NAMES, *itertools.chain(*SENTENCE_NAMES)}:
        return True
    numeric = (bool(rest) and all(is_number(row[i]) for row in rest) for i in range(table.width))
    return any(is_numeric and not is_number(cell) for is_numeric, cell in zip(numeric, first, strict=True))


def _asked_for(table: Table, columns: Columns) -> tuple[Table, list[str]]:
    """Return the columns that are asked for, and the table, its first row read as names where one is a name."""
    items: Iterable[str | int] = columns.split(",") if isinstance(columns, str) else columns
    wanted = [str(item).strip() for item in items]
    return table if all(map(_is_index, wanted)) else table.with_header(), wanted


def _is_index(column: str) -> bool:
    return re.fullmatch("[0-9]{1,6}", column) is not None


def _known_columns(table: Table, kind: Kind | None) -> tuple[int, ...]:
    layout = PAIR if kind is None else kind.layout
    if table.header is None:
        if table.width == 2 if kind is None else not kind.pairs:
            return _unnamed_text_and_target(table, SINGLE if kind is None else layout)
        return _unnamed_pair_columns(table)
    texts: tuple[int, ...] | None = _named_sentences(table.header) if kind is None or kind.pairs else None
    if texts is None and (kind is None or not kind.pairs):
        single = _named(table.header, TEXT_NAMES)
        texts = None if single is None else (single,)
    kinds = KINDS.usable().values() if kind is None else (kind,)
    names = [name for each in kinds if texts and each.pairs == (len(texts) == 2) for name in each.target_columns]
    target = _named(table.header, names)
    if texts is None or target is None:
        raise _unknown_layout(table, layout)
    return _distinct(table, (*texts, target))


def _unnamed_text_and_target(table: Table, layout: str) -> tuple[int, int]:
    numeric = [i for i in range(table.width) if all(is_number(row[i]) for row in table.rows)]
    if table.width != 2 or len(numeric) != 1:
        raise _unknown_layout(table, layout)
    return 1 - numeric[0], numeric[0]


def _unnamed_pair_columns(table: Table) -> tuple[int, int, int]:
    # By the first row, so that a bad score further down is reported as a bad score.
    numeric = [i for i, cell in enumerate(table.rows[0]) if is_number(cell)]
    if len(numeric) > 1:
        numeric = [i for i in numeric if all(is_number(row[i]) for row in table.rows)]
    if table.width != 3 or len(numeric) != 1:
        raise _unknown_layout(table, PAIR)
    first, second = (i for i in range(3) if i != numeric[0])
    return first, second, numeric[0]


def _known_text_columns(table: Table) -> tuple[int, ...]:
    if table.width == 1:
        return (0,)
    if table.header is None:
        try:
            return _unnamed_pair_columns(table)[:2]
        except TaskError:
            raise _unknown_layout(table, "the texts") from None
    if (sentences := _named_sentences(table.header)) is not None:
        return _distinct(table, sentences)
    if (text := _named(table.header, TEXT_NAMES)) is not None:
        return _distinct(table, (text,))
    raise _unknown_layout(table, "the texts")


def _named_sentences(header: Sequence[str]) -> tuple[int, int] | None:
    names = [plain_name(name) for name in header]
    return next(((names.index(a), names.index(b)) for a, b in SENTENCE_NAMES if {a, b} <= set(names)), None)


def _named(header: Sequence[str], known: Sequence[str]) -> int | None:
    names = [plain_name(name) for name in header]
    return next((names.index(name) for name in known if name in names), None)


def _distinct(table: Table, columns: tuple[int, ...]) -> tuple[int, ...]:
    """Return columns that were found by their names; raise TaskError if another column has the name of one."""
    names = [plain_name(name) for name in table.header or ()]
    for column in columns:
        if names.count(names[column]) > 1:
            raise _twice(table, (table.header or ())[column])
    return columns


def _twice(table: Table, name: str) -> TaskError:
    return TaskError(f"{table.name} has several columns {_short(name)!r}: rename them, or name columns by index from 0")


def plain_name(name: str) -> str:
    """Return a name in lower case, without spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _unknown_layout(table: Table, what: str) -> TaskError:
    columns = _likely_columns(table, what.split(","))
    names = [table.header[i] if table.header is not None else str(i) for i in columns]
    if what == PAIR and (kind := _ranking_kind(table.header or ())):
        return TaskError(
            f"{table.name}: it has {_shown(table)}, which may be those of another kind of task: choose {kind}"
        )
    example = f", for example --columns {','.join(names)!r}" if names else ""
    advice = f"name {what} by column or index from 0{example}"
    return TaskError(f"{table.name}: cannot tell which columns are {what}; it has {_shown(table)}: {advice}")


def _ranking_kind(header: Sequence[str]) -> str:
    """Return how to ask for the kinds that train on columns of such names; empty where none does."""
    if _named(header, QUERY_NAMES) is None or _named(header, DOCUMENT_NAMES) is None:
        return ""
    negative = any(plain_name(name).startswith(NEGATIVE_NAME) for name in header)
    return "--kind retrieval or --kind triplets" if negative else "--kind retrieval"


def _likely_columns(table: Table, wanted: Sequence[str]) -> list[int]:
    """Return columns that could be the wanted ones, texts before a target; none where there are too few.

    No column that numbers the rows or is called an id is among them.
    """
    rows = table.rows[:_LOOKED_AT]
    columns = {i: [row[i].strip() for row in rows] for i in range(table.width)}
    body = {i: cells[1:] or cells if table.header is None else cells for i, cells in columns.items()}
    numeric = [i for i in body if body[i] and all(is_number(cell) for cell in body[i] if cell)]
    named = [] if table.header is None else [i for i, name in enumerate(table.header) if plain_name(name) in ROW_NAMES]
    numbering = [*named, *(i for i in numeric if _counts_up(body[i]))]
    others = [i for i in range(table.width) if i not in numbering]
    length = {i: sum(map(len, body[i])) for i in others}
    longest = sorted((i for i in others if i not in numeric), key=lambda i: -length[i])
    n_texts = len(wanted) - 1 if len(wanted) > 1 else 1
    texts = sorted(longest[:n_texts])
    targets = [i for i in others if i in numeric] + longest[n_texts:] if len(wanted) > 1 else []
    return [*texts, *targets[:1]] if len(texts) + len(targets[:1]) == len(wanted) else []


_LOOKED_AT = 1000


def _counts_up(cells: Sequence[str]) -> bool:
    """Return whether cells are whole numbers, each the one before and 1."""
    if len(cells) < 3 or not all(re.fullmatch(r"[0-9]{1,18}", cell) for cell in cells):
        return False
    return all(int(after) - int(before) == 1 for before, after in itertools.pairwise(cells))


def _shown(table: Table) -> str:
    if table.header is not None:
        return f"the columns {', '.join(_short(name) or '(no name)' for name in table.header)}"
    cells = ", ".join(f"{i}: {_short(cell)!r}" for i, cell in enumerate(table.rows[0]))
    return f"no header and the first row {cells}"


def _short(cell: str) -> str:
    return " ".join(cell.split())[:30]
