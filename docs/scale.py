"""Write docs/concepts/scale.md: what work far beyond one machine would take, from constants measured on one.

`python docs/scale.py`. Change a constant and run it again: every number of the page follows.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from layerprobe.store.manifest import MAX_SHARDS
from layerprobe.store.store import MAX_SHARD_ROWS, MIN_SHARD_ROWS, SHARD_BYTES

PAGE = Path(__file__).parent / "concepts" / "scale.md"
HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One measured number."""

    value: float
    what: str
    """With its unit."""
    where: str
    """The script that measures it."""
    date: str = "2026-11-22"


SCALE, SIMILARITY = "`bench_scale.py`", "`bench_similarity.py`"

SHORT = Constant(value=16.8, what="tokens of a short text (lengths as in the STS benchmark)", where=SCALE)
CPU_SHORT = Constant(
    value=24.69, what="short texts per second, base size, all 13 layers, float32, one thread", where=SCALE
)
CPU_LONG = Constant(value=3.99, what="texts of 128 tokens per second, the same", where=SCALE)
GPU = Constant(
    value=1.9e6,
    what="tokens per second, a model of base size in bfloat16, 128 tokens a text, the forward pass alone, one H200",
    where="`bench_gpu.py`",
    date="2026-11-27",
)
TOKENISED = Constant(value=271_000, what="tokens per second through the tokenizer, one thread", where=SCALE)
WRITTEN = Constant(
    value=220, what="MB per second written to the store, with checksums, one process, local disk", where=SCALE
)
CHECKED = Constant(value=1_750, what="MB per second of shards checked when they are opened, two cores", where=SCALE)
SHARD_ENTRY = Constant(value=171, what="bytes of the manifest for a shard", where=SCALE)
LINEAR = Constant(value=1.26, what="s, linear CKA of 13 x 13 layers of 2,758 x 768, one thread", where=SIMILARITY)
LINEAR_SE = Constant(value=1.72, what="s, the same with intervals", where=SIMILARITY)
MILLION = Constant(
    value=75,
    what="s, one pair of layers of a million texts x 768, by cross-covariances, one thread",
    where=f"{SIMILARITY} `--million`",
    date="2026-11-20",
)
STEP = Constant(
    value=0.211,
    what="steps of 32 pairs per second, TMFT of base size at layer 9, one thread",
    where="`bench_finetuning.py --shape base`",
    date="2026-11-21",
)
FIND = Constant(
    value=0.133,
    what="of a sweep of all layers with five seeds is what `find` spends at 12 blocks",
    where="[DropBench](../results/dropbench-search.md)",
    date="2026-11",
)
WIDTH = Constant(
    value=1.62,
    what="width of a 95 % interval of CKA times the root of the texts: MiniLM and its random copy, mean of 7 layers",
    where=SCALE,
)
WIDEST = Constant(value=2.08, what="the same at the layer where it is widest", where=SCALE)
KEPT = Constant(value=487, what="bytes of a kept comparison for each pair of layers", where=SCALE)

CONSTANTS = (
    SHORT, CPU_SHORT, CPU_LONG, GPU, TOKENISED, WRITTEN, CHECKED, SHARD_ENTRY, LINEAR, LINEAR_SE, MILLION, STEP,
    FIND, WIDTH, WIDEST, KEPT,
)  # fmt: skip

LONG = 128  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A BERT-like model: 12 d^2 weights a block."""

    blocks: int
    width: int

    @property
    def layers(self) -> int:
        """With the output of the embeddings."""
        return self.blocks + 1

    @property
    def block_weights(self) -> float:
        """Of one block: 4 d^2 of attention and 8 d^2 of the two products after it."""
        return 12 * self.width**2

    @property
    def text_bytes(self) -> int:
        """Of the embeddings of one text at all layers, float32."""
        return 4 * self.layers * self.width

    def forward(self, tokens: float) -> float:
        """Return the operations of a text: two for each weight and token, and attention between its tokens."""
        return tokens * self.blocks * (2 * self.block_weights + 4 * tokens * self.width)


BASE, DEEP = Shape(blocks=12, width=768), Shape(blocks=70, width=8192)

CPU_RATE = BASE.forward(LONG) * CPU_LONG.value
"""Operations per second of a forward pass on one thread."""
GPU_RATE = BASE.forward(LONG) / LONG * GPU.value
GRAM_RATE = 26 * 2758**2 * 768 / LINEAR.value
"""Of linear CKA by tiles: half of every Gram matrix, two operations for each product."""
INTERVAL_COST = (LINEAR_SE.value - LINEAR.value) / (169 * 2758**2 / 2)
"""Seconds for each pair of layers and pair of texts."""
COVARIANCE_RATE = 3 * 2 * 10**6 * 768**2 / MILLION.value
"""Two layers have three cross-covariances."""
TRAIN_RATE = 6 * 9 * BASE.block_weights * 64 * SHORT.value * STEP.value
"""Three passes' worth of operations for each weight and token."""


def number(value: float, digits: int = 3) -> str:
    """Return a number in a few digits.

    Examples:
        >>> number(1234567), number(16.84), number(0.000051234, 2), number(5)
        ('1,230,000', '16.8', '0.000051', '5')
    """
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:.9f}".rstrip("0").rstrip(".")


def size(value: float) -> str:
    """Return bytes in the unit that fits.

    Examples:
        >>> size(39_936), size(4e13)
        ('39.9 kB', '40 TB')
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{number(value)} {unit}"


def hours(seconds: float, digits: int = 3) -> str:
    """Return hours."""
    return number(seconds / HOUR, digits)


def table(head: str, *rows: tuple[object, ...]) -> str:
    """Return a table of Markdown."""
    n = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * n, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def page() -> str:
    """Return the page."""
    return "\n\n".join(map(_wrapped, (*_constants(), *_billion(), *_deep(), *_many()))) + "\n"


def _wrapped(part: str) -> str:
    if part.startswith(("|", "#")):
        return part
    return textwrap.fill(" ".join(part.split()), 120, break_long_words=False, break_on_hyphens=False)


def _constants() -> Iterator[str]:
    yield "# Far beyond one machine, on paper"
    yield """
        A billion texts, a model of 70 blocks, a thousand models: none of it was run. It is worked out here from what
        was measured at small sizes, by `python docs/scale.py`, so that the page follows when a constant changes.
        Threads are those of a two-core AMD EPYC. **GPU hours are for orientation alone**: they
        follow from one measured rate, of the forward pass of texts of 128 tokens; short ones go half as fast.
    """
    yield table(
        "| constant | | measured by | date |",
        *((number(c.value, 4), c.what, c.where, c.date) for c in CONSTANTS),
    )
    yield f"""
        What follows from them: {number(CPU_RATE / 1e9)} GFLOP/s of a thread in a forward pass,
        {number(GRAM_RATE / 1e9)} in the Gram tiles of CKA, {number(COVARIANCE_RATE / 1e9)} in its cross-covariances,
        {number(TRAIN_RATE / 1e9)} in TMFT; {number(GPU_RATE / 1e12)} TFLOP/s of a GPU.
    """


def _billion() -> Iterator[str]:
    n = 10**9
    entry = n * BASE.text_bytes
    rows = min(max(SHARD_BYTES // BASE.text_bytes, MIN_SHARD_ROWS), MAX_SHARD_ROWS)
    shards, larger = -(-n // rows), -(-n // (2**30 // BASE.text_bytes))
    tokens = SHORT.value, LONG
    on_cpu = [n / c.value for c in (CPU_SHORT, CPU_LONG)]
    tokenising = [n * t / TOKENISED.value for t in tokens]
    writing, checking = entry / (WRITTEN.value * 1e6), entry / (CHECKED.value * 1e6)
    made = [GPU.value / t * BASE.text_bytes for t in tokens]  # bytes per second
    writers = [number(each / WRITTEN.value / 1e6, 2) for each in made]
    cka = 2 * 195 * 2 * n * BASE.width**2 / COVARIANCE_RATE  # 26 + 169 cross-covariances, raw and z-scored
    same = "the same"
    yield "## A billion texts through a model of base size, all 13 layers"
    yield table(
        f"| | short texts ({SHORT.value:g} tokens) | texts of {LONG} tokens |",
        ("tokens", *(f"{number(n * t / 1e9)} billion" for t in tokens)),
        ("embeddings, float32", size(entry), same),
        ("embeddings, float16", size(entry / 2), same),
        ("tokenising, thread hours", *map(hours, tokenising)),
        ("forward pass, thread hours on CPUs", *(f"**{hours(each)}**" for each in on_cpu)),
        ("forward pass, GPU hours", *(hours(n * t / GPU.value) for t in tokens)),
        ("writing by one process, hours", f"**{hours(writing)}**", same),
        ("what a GPU makes, to a shared disk", *(f"{number(each * 8 / 1e9)} Gbit/s" for each in made)),
        ("checking once when opened, hours", hours(checking), same),
        ("linear CKA of 13 x 13 layers without intervals, raw and z-scored, thread hours", hours(cka), same),
    )
    yield f"""
        **The limit.** On CPUs the forward pass: {number(100 * on_cpu[0] / (on_cpu[0] + tokenising[0] + writing), 4)}
        % of the time with short texts, and {hours(on_cpu[0] / 1000)} hours on a thousand threads. On GPUs with short
        texts it is the disk: one GPU makes {number(made[0] / 1e9)} GB per second where one process writes
        {number(WRITTEN.value / 1000)}, so that {writers[0]} writers are needed for each GPU, and
        {number(made[0] * 8 / 1e9, 2)} Gbit/s of network; float16 halves both. With {LONG} tokens it is {writers[1]}
        writers.
    """
    yield "**What breaks first, in this order:**"
    yield table(
        "| at | what | why, and where | what one would do |",
        (
            f"{number(MAX_SHARDS * rows / 1e6)} million",
            f"`extract` refuses: {shards:,} shards of {rows:,} rows, of at most {MAX_SHARDS:,}",
            "five digits in a shard's name, shards of 64 MiB (`store/manifest.py`, `store/store.py`)",
            f"shards of 1 GiB, {larger:,} of them: the format holds it, the default does not",
        ),
        (
            "the same",
            f"the manifest is written anew after every shard: {size(MAX_SHARDS * SHARD_ENTRY.value)} at {MAX_SHARDS:,}"
            f" shards, {size(MAX_SHARDS**2 / 2 * SHARD_ENTRY.value)} together",
            "one JSON file an entry (`store/shards.py`)",
            "a line for each shard, appended",
        ),
        (
            "a billion",
            f"ids: {size(20 * n)} of JSON, made whole in memory; where texts lie and what they are known by: as much",
            "`samples.json` (`store/shards.py`), `spooled.py`",
            "ids in the shards",
        ),
        (
            "a billion",
            f"two texts share an id, by a chance of {number(100 * n**2 / 2 / 2**64, 2)} %",
            "64 bits (`store/manifest.py`)",
            "ids of 128 bits",
        ),
        (
            "any size",
            "one process writes an entry, the others wait; with `--ray` nodes write shards, and it the manifest",
            "its lock (`store/store.py`)",
            f"an entry for each part of the texts: {size(entry / 100)} each in a hundred parts",
        ),
    )
    yield """
        **What one would really do: take fewer texts.** The similarity of layers is a mean over pairs of texts, and is
        known soon:
    """
    yield table(
        "| texts | interval of CKA, mean | widest layer | embeddings | thread hours to embed, short texts |",
        *(
            (
                f"{k:,}",
                number(WIDTH.value / k**0.5, 2),
                number(WIDEST.value / k**0.5, 2),
                size(k * BASE.text_bytes),
                hours(k / CPU_SHORT.value, 2),
            )
            for k in (1000, 2758, 10_000, 100_000, 10**6, n)
        ),
    )
    enough = ", ".join(f"{number((WIDEST.value / w) ** 2, 2)} for {w:g}" for w in (0.05, 0.02, 0.01))
    yield f"""
        An interval of width w takes (constant / w)² texts: {enough} at the widest layer. The root of n held from 500
        to 8,000 texts: width times root fell by 6 % from the first to the third size, and then stayed. **Ten thousand
        texts drawn at random say what a billion would, to {number(WIDEST.value / 200, 2)} either way**, for
        {number(1e4 / CPU_SHORT.value / 60, 2)} minutes of one thread: a hundred-thousandth of the work. A billion
        texts are a reason to choose the texts well (by source, length and language), not to embed them all.
    """


def _deep() -> Iterator[str]:
    n, steps = 10_000, -(-5749 // 32) * 10  # the pairs of the STS benchmark, ten epochs
    weights = DEEP.blocks * DEEP.block_weights
    grams = 2 * DEEP.layers * n**2 * DEEP.width
    covariances = (2 * DEEP.layers + DEEP.layers**2) * 2 * n * DEEP.width**2
    intervals = DEEP.layers**2 * n**2 / 2 * INTERVAL_COST
    cka = grams / GRAM_RATE + intervals
    run = 6 * weights * 64 * SHORT.value * steps
    sweep = run * sum(range(DEEP.layers)) / DEEP.blocks * 5
    search = FIND.value * sweep
    fits = int(80e9 / 16 / DEEP.block_weights)
    forward = n * DEEP.forward(LONG)
    yield f"## A model of {DEEP.blocks} blocks of {DEEP.width:,} features"
    yield table(
        "| work | memory or disk | thread hours | GPU hours |",
        (f"weights: {number(weights / 1e9)} billion, float32", size(4 * weights), "", ""),
        ("the same in bfloat16", size(2 * weights), "", ""),
        (f"embeddings of a text, {DEEP.layers} layers", size(DEEP.text_bytes), "", ""),
        (
            f"embedding {n:,} texts of {LONG} tokens",
            size(n * DEEP.text_bytes),
            hours(forward / CPU_RATE),
            hours(forward / GPU_RATE),
        ),
        (
            f"CKA of {DEEP.layers} x {DEEP.layers} layers of {n:,} texts with intervals, raw and z-scored",
            f"{size(2 * DEEP.layers * 512**2 * 4)} of tiles, {size(DEEP.layers**2 * n * 4)} of parts by text",
            hours(2 * cka, 2),
            "",
        ),
        (
            f"one run of TMFT at layer {DEEP.blocks}, {steps:,} steps",
            f"{size(16 * weights)} of weights, gradients and moments",
            hours(run / TRAIN_RATE),
            hours(run / GPU_RATE, 2),
        ),
        (f"a sweep: {DEEP.layers} layers, five seeds", "", hours(sweep / TRAIN_RATE), hours(sweep / GPU_RATE)),
        (
            "`find`, if it spends the share that it does at 12 blocks",
            "",
            hours(search / TRAIN_RATE),
            hours(search / GPU_RATE),
        ),
    )
    yield f"""
        CKA by cross-covariances would take {number(covariances / grams, 2)} times as many operations as by tiles, so
        tiles it is; intervals are {number(100 * intervals / cka, 2)} % of the time. Both models together have
        {size(2 * n * DEEP.text_bytes)} of embeddings, and every tile reads its rows again, about eleven times in all:
        with less memory than that the disk is the limit, and half as many texts are the remedy. GPU hours of training
        suppose the rate of the forward pass, which is kind.
    """
    yield table(
        "| breaks | why, and where | what one would do |",
        (
            f"loading: {size(4 * weights)}",
            "weights are loaded in float32, onto one device (`encoders/loading.py`)",
            f"a block at a time, {size(2 * DEEP.block_weights)} in bfloat16: all texts through it, then the next; "
            f"their states are {size(n * LONG * DEEP.width * 2)} on disk",
        ),
        (
            f"TMFT from layer {fits + 1} on, with 80 GB",
            "16 bytes a weight on one device (`finetuning/tmft.py` says so in one line)",
            "weights sharded over devices; or low-rank updates, another experiment than the paper's",
        ),
        (
            f"nothing: a shard is {size(MIN_SHARD_ROWS * DEEP.text_bytes)}",
            f"at least {MIN_SHARD_ROWS} rows (`store/store.py`)",
            "",
        ),
    )
    yield f"""
        So a prediction without training is in reach of one machine, once the forward pass is. A search by TMFT is
        not: its last layer needs {-(-16 * weights // 80e9):.0f} devices of 80 GB for the weights alone. Low layers
        are the cheap end: a run at layer {fits} fits one, and is
        {number(run * fits / DEEP.blocks / GPU_RATE / 60, 2)} minutes of it.
    """


def _many() -> Iterator[str]:
    models, n, fewer = 1000, 10_000, 2000
    pairs = models * (models - 1) // 2
    layer_pairs = pairs * BASE.layers**2
    embeddings = models * n * BASE.text_bytes
    gram, interval = n**2 * BASE.width / GRAM_RATE, n**2 / 2 * INTERVAL_COST  # of a layer, of a pair of layers
    today = pairs * 2 * (26 * gram + BASE.layers**2 * interval)
    values = pairs * 26 * gram
    tiles, products = models * BASE.layers * gram, layer_pairs * n**2 / GRAM_RATE
    covariances = 2 * n * BASE.width**2 * layer_pairs / COVARIANCE_RATE
    share = (n // fewer) ** 2
    yield f"## {models:,} models with each other"
    yield f"""
        Base size, {n:,} texts: {pairs:,} pairs of models, {number(layer_pairs / 1e6)} million pairs of layers;
        embeddings of {size(embeddings)}, made once, in {hours(models * n / CPU_SHORT.value)} thread hours.
    """
    yield table(
        "| form | thread hours | memory | disk |",
        (
            "today: `compare` for each pair, raw and z-scored, with intervals",
            f"**{hours(today)}**",
            "tiles of 26 layers",
            f"{size(layer_pairs * KEPT.value)} of results",
        ),
        ("the same, raw alone and without intervals", hours(values), "the same", ""),
        (
            "one pass over all: every Gram tile made once",
            hours(tiles, 2),
            f"{size(models * BASE.layers * 512**2 * 4)} of tiles of 512 rows",
            f"{size(embeddings)} read about eleven times",
        ),
        ("and their inner products, layer by layer", hours(products, 2), f"{size(8 * layer_pairs)} of values", ""),
        ("and intervals for all of them", hours(layer_pairs * interval), f"{size(4 * n)} a pair of layers", ""),
    )
    yield f"""
        **What is done again today.** Each model's {BASE.layers} layers take part in {models - 1} comparisons, and
        their Gram tiles are made in each: embeddings, diagnostics and whole comparisons are kept, tiles are not
        (`comparison/compare.py`, `similarity/engine/paths.py`). A Gram matrix is {size(2 * n * n)} for a layer in
        float32, {size(models * BASE.layers * 2 * n * n)} for all: too much to keep. So the right form is one pass
        that makes each tile once, {number(values / (tiles + products), 2)} times less work than pair by pair, values
        alone. `compare_all` is that pass for one model and many references; what lacks is many against many, smaller
        tiles so that memory holds those of {models * BASE.layers:,} layers, and intervals on request, for the pairs
        that are looked at. By cross-covariances it would be {hours(covariances)} thread hours: worse.
    """
    yield f"""
        **And fewer texts:** with {fewer:,} an interval is {number(WIDEST.value / fewer**0.5, 2)} wide at most, enough
        to sort models, and everything quadratic in texts falls by {share}: {hours(today / share)} thread hours as it
        is today, {hours((tiles + products) / share, 2)} in one pass.
    """
    yield f"""
        **What breaks first:** patience, since nothing refuses; then the store, with half a million files in one
        folder. With `compare_all`, a thousand references at once take {size((models + 1) * BASE.layers * 512**2 * 4)}
        of tiles and, with intervals, {size(models * BASE.layers**2 * n * 4)} of parts by text.
    """


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
