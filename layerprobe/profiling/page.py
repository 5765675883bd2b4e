"""What truncated models cost to serve, as one HTML page. Knows profiles, and studies for their scores."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import plotly.graph_objects as go

from layerprobe.errors import DataError
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.names import distinct_names
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.page import compose, write_page
from layerprobe.pages.parts import definitions, downloads, figure, folded, row, section, table
from layerprobe.profiling import figures as figures
from layerprobe.profiling.values import Cost, LayerProfile, Profile
from layerprobe.serialisation import to_json
from layerprobe.study.values import Study

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLUMNS = ("Parameters", "GFLOPs a text", "ms a batch", "5–95\u00a0%", "Texts/s", "Tokens/s", "Memory (MB)")
CSV_COLUMNS = (
    *("model", "layer", "parameters", "length", "batch_size", "flops", "seconds", "seconds_low", "seconds_high"),
    *("texts_per_second", "tokens_per_second", "repeats", "peak_memory", "tmft_spearman_mean"),
)
GLOSSARY = {
    "Layer": "0 is the output of the embedding module, l the output of block l; truncating at layer l keeps blocks"
    " 1 to l.",
    "Latency": "Seconds from a batch of token ids on the device to its embeddings on the device: the median of all"
    " repeats, with their 5 and 95\u00a0% quantiles. Tokenising is not in it.",
    "Throughput": "Texts of a batch by its median seconds.",
    "FLOPs": "Floating-point operations of one text by torch’s FlopCounterMode: matrix products and convolutions, a"
    " multiplication with its addition counted as two.",
}
SCORED = {
    "Pareto front": "The layers that no other beats in both cost and score.",
    "TMFT": "Truncated model fine-tuning: the blocks above a layer are removed, and the rest is fine-tuned.",
}
"""Words of profiles with a study."""


class Identified(Protocol):
    """A model that can be told from others: a description, or a checkpoint that was found."""

    @property
    def revision(self) -> str:
        """Resolved commit, or the content digest of a local folder."""

    @property
    def random_init(self) -> int | None:
        """Seed of random weights."""


def scores_of(studies: Sequence[Study], model: Identified) -> dict[int, LayerOutcome]:
    """Return what the studies' fine-tuning showed of a model, as their model or their reference, by layer."""
    found = {}
    for study in studies:
        outcomes = study.confirmation.outcomes if study.confirmation else ()
        for described, shown in (
            (study.comparison.model, outcomes),
            (study.comparison.reference, study.reference_outcomes),
        ):
            if _same(described, model):
                found.update({outcome.layer: outcome for outcome in shown})
    return dict(sorted(found.items()))


def check_studies(studies: Sequence[Study], models: Sequence[Identified]) -> None:
    """Check that every study has fine-tuning scores of one of the models.

    Raises:
        DataError: If one is a study of other models, or without fine-tuning of these.
    """
    for study in studies:
        pair = study.comparison.model, study.comparison.reference
        if not any(_same(described, model) for described in pair for model in models):
            raise DataError(
                f"expected a study of the model that is profiled, got one of {pair[0].name} and {pair[1].name}: "
                "profile the same checkpoint"
            )
        if not any(scores_of([study], model) for model in models):
            raise DataError(
                f"expected a study with fine-tuned layers, got none in that of {pair[0].name}: "
                "run it without --no-fine-tuning"
            )


def _same(first: Identified, second: Identified) -> bool:
    return (first.revision, first.random_init) == (second.revision, second.random_init)


def write_profile_report(profiles: Sequence[Profile], path: str | Path, *, studies: Sequence[Study] = ()) -> Path:
    """Write the report of one or more profiles; a reader sees the old file or the whole new one.

    Args:
        profiles: Of the same lengths and batch sizes.
        path: The HTML file; its folder is made where it is missing.
        studies: Where the scores of their layers after fine-tuning are.

    Returns:
        The path written.

    Raises:
        DataError: If the profiles are of different shapes, or a study is of other models.
        LayerProbeError: If the file cannot be written.
    """
    return write_page(render_profiles(profiles, studies), path)


def render_profiles(profiles: Sequence[Profile], studies: Sequence[Study] = ()) -> str:
    """Return the report as HTML that loads nothing; see `write_profile_report`."""
    if len({profile.shapes for profile in profiles}) != 1:
        raise DataError("expected at least one profile, all of the same lengths and batch sizes")
    check_studies(studies, [profile.model for profile in profiles])
    shown = Shown(profiles, [scores_of(studies, profile.model) for profile in profiles])
    return compose(
        title=f"What {' and '.join(shown.labels)} cost{'s' if len(profiles) == 1 else ''} to serve",
        body=_sections(shown),
        data=to_json({"profiles": list(profiles), "scores": [list(scored.values()) for scored in shown.scores]}),
        table=profile_csv(profiles, shown.scores),
        drawn=_drawn(shown),
    )


class Shown:
    """Profiles with what is shown beside them."""

    def __init__(self, profiles: Sequence[Profile], scores: figures.Scores) -> None:
        self.profiles = profiles
        self.scores = scores
        self.labels = [numbers.label(name) for name in distinct_names([profile.model.name for profile in profiles])]
        self.longest = max(length for length, _ in profiles[0].shapes)
        self.smallest = figures.smallest_batch(profiles)

    @property
    def scored(self) -> bool:
        """Whether a profiled layer has a score."""
        return any(map(figures.layers_scored, self.profiles, self.scores))

    def latency(self, each: LayerProfile) -> Cost:
        """Return the cost whose time stands for a layer: the smallest batch of the longest texts."""
        return each.cost(self.longest, self.smallest)


def profile_csv(profiles: Sequence[Profile], scores: figures.Scores) -> str:
    """Return every cost as CSV: full precision, empty where a number is missing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for profile, scored in zip(profiles, scores, strict=True):
        for each in profile.layers:
            score = scored[each.layer].mean if each.layer in scored else None
            for cost in each.costs:
                times = cost.seconds, cost.seconds_low, cost.seconds_high, cost.texts_per_second, cost.tokens_per_second
                shape = cost.length, cost.batch_size, cost.flops
                beside = cost.repeats, cost.peak_memory, score
                line = (profile.model.name, each.layer, each.parameters, *shape, *times, *beside)
                writer.writerow(line)
    return buffer.getvalue()


def _drawn(shown: Shown) -> dict[str, go.Figure]:
    drawn = {}
    if shown.scored:
        drawn["score-latency"] = figures.latency_against_score(
            shown.profiles, shown.labels, shown.scores, length=shown.longest
        )
        drawn["score-size"] = figures.size_against_score(shown.profiles, shown.labels, shown.scores)
    drawn["latency"] = figures.latency(shown.profiles, shown.labels)
    drawn["throughput"] = figures.throughput(shown.profiles, shown.labels)
    return drawn


# ---- sections -----------------------------------------------------------------------------------------


def _sections(shown: Shown) -> Markup:
    return join(_header(shown), _pareto(shown), _latency(shown), _throughput(shown), _costs(shown), _sources(shown))


def _header(shown: Shown) -> Markup:
    names = join(
        *(join(element("span", " and ", class_="against") if i else None, n) for i, n in enumerate(shown.labels))
    )
    warnings = [warning for profile in shown.profiles for warning in profile.warnings]
    return element(
        "header",
        element("p", "layerprobe · what it costs to serve", class_="overline"),
        element("h1", names),
        *(element("p", _sentence(shown, index), class_="prediction") for index in range(len(shown.profiles))),
        *(_cards(shown, index) for index in range(len(shown.profiles))),
        element(
            "aside",
            element("h2", "Warnings"),
            element("ul", *(element("li", warning) for warning in dict.fromkeys(warnings))),
            class_="warnings",
        )
        if warnings
        else None,
    )


def _sentence(shown: Shown, index: int) -> str:
    profile = shown.profiles[index]
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    whole = shown.latency(last)
    what = "one text" if shown.smallest == 1 else f"a batch of {shown.smallest} texts"
    sentence = (
        f"{shown.labels[index]} needs {milliseconds(whole.seconds)} at layer {last.layer} for {what} of "
        f"{shown.longest} tokens"
    )
    if middle is last:
        return f"{sentence}."
    part = shown.latency(middle)
    return (
        f"{sentence} and {milliseconds(part.seconds)} truncated at layer {middle.layer}, "
        f"{significant(whole.seconds / part.seconds)} times as fast."
    )


def _cards(shown: Shown, index: int) -> Markup:
    profile = shown.profiles[index]
    first, last = profile.layers[0], profile.layers[-1]
    cost, start = shown.latency(last), shown.latency(first)
    biggest = last.costs[-1]
    blocks = last.layer - first.layer
    peak = "—" if biggest.peak_memory is None else f"{megabytes(biggest.peak_memory)}\u00a0MB"
    values = (
        (f"Latency at layer {last.layer}", milliseconds(cost.seconds), f"5–95\u00a0%: {_quantiles(cost)} ms"),
        (
            "A block adds",
            milliseconds((cost.seconds - start.seconds) / blocks) if blocks else "—",
            f"and {significant((cost.flops - start.flops) / blocks / 1e9)} GFLOPs" if blocks else "one layer only",
        ),
        (
            f"Texts a second, by {biggest.batch_size}",
            significant(biggest.texts_per_second),
            f"{significant(biggest.tokens_per_second)} tokens a second",
        ),
        (
            "Peak memory",
            peak,
            f"{biggest.batch_size} texts of {biggest.length} tokens, {numbers.millions(last.parameters)} parameters",
        ),
    )
    label = element("h3", shown.labels[index]) if len(shown.profiles) > 1 else None
    cards = (
        element("div", element("dt", name), element("dd", value, class_="value"), element("dd", detail))
        for name, value, detail in values
    )
    return join(label, element("dl", *cards, class_="cards"))


def _pareto(shown: Shown) -> Markup | None:
    if not shown.scored:
        return None
    reading = "Labels are layers, the line is the Pareto front: the best score for at most so much {}."
    named = list(zip(shown.profiles, shown.scores, shown.labels, strict=True))

    def finding(unit: str, costs: Sequence[Mapping[int, float]]) -> str:
        points = {
            (costs[i][each.layer], scored[each.layer].mean): f"{label} at layer {each.layer}"
            for i, (profile, scored, label) in enumerate(named)
            for each in figures.layers_scored(profile, scored)
        }
        best = (
            f"{points[p]} ({significant(p[0])} {unit}, {numbers.number(p[1])})" for p in figures.front(list(points))
        )
        return f"Nothing else is both cheaper and better than {', '.join(best)}."

    times = [{each.layer: 1e3 * shown.latency(each).seconds for each in profile.layers} for profile in shown.profiles]
    sizes = [{each.layer: each.parameters / 1e6 for each in profile.layers} for profile in shown.profiles]
    return section(
        "pareto",
        "Score for the cost",
        figure("score-latency", finding("ms", times), reading.format("time")),
        figure("score-size", finding("M parameters", sizes), reading.format("memory for weights")),
    )


def _latency(shown: Shown) -> Markup:
    finding = " ".join(_sentence(shown, index) for index in range(len(shown.profiles)))
    reading = "Bars are the 5 and 95\u00a0% quantiles of all repeats."
    return section("latency", "Latency by layer", figure("latency", finding, reading))


def _throughput(shown: Shown) -> Markup:
    said = []
    for label, profile in zip(shown.labels, shown.profiles, strict=True):
        cost = profile.layers[-1].costs[-1]
        said.append(
            f"In batches of {cost.batch_size}, {label} embeds {significant(cost.texts_per_second)} texts of "
            f"{cost.length} tokens a second at layer {profile.layers[-1].layer}."
        )
    reading = "The axis is logarithmic."
    return section("throughput", "Throughput by layer", figure("throughput", " ".join(said), reading))


def _costs(shown: Shown) -> Markup:
    shapes = shown.profiles[0].shapes
    tables = (
        folded(
            f"{length} tokens, {'one text' if size == 1 else f'batches of {size}'}",
            _cost_table(shown, length, size),
            opened=index == 0,
        )
        for index, (length, size) in enumerate(shapes)
    )
    letters = None
    if len(shown.profiles) > 1:
        named = zip(LETTERS, shown.profiles, strict=False)
        letters = element("p", ", ".join(f"{letter} is {profile.model.name}" for letter, profile in named), ".")
    return section("costs", "Every layer and shape", letters, *tables)


def _cost_table(shown: Shown, length: int, size: int) -> Markup:
    columns = (*COLUMNS, "TMFT Spearman") if shown.scored else COLUMNS
    several = len(shown.profiles) > 1
    head = [f"{LETTERS[i]}: {name}" if several else name for i in range(len(shown.profiles)) for name in columns]
    by_layer = [{each.layer: each for each in profile.layers} for profile in shown.profiles]
    layers = sorted({layer for profiled in by_layer for layer in profiled})

    def cells(layer: int) -> Iterator[str]:
        for profiled, scored in zip(by_layer, shown.scores, strict=True):
            if layer not in profiled:
                yield from ("–",) * len(columns)
                continue
            cost = profiled[layer].cost(length, size)
            yield numbers.millions(profiled[layer].parameters)
            yield significant(cost.flops / 1e9)
            yield significant(1e3 * cost.seconds)
            yield _quantiles(cost)
            yield significant(cost.texts_per_second)
            yield significant(cost.tokens_per_second)
            yield "–" if cost.peak_memory is None else megabytes(cost.peak_memory)
            if shown.scored:
                yield numbers.number(scored[layer].mean) if layer in scored else "–"

    rows = (row(str(layer), cells(layer)) for layer in layers)
    return table(f"Costs of {length} tokens in batches of {size}", ("Layer", *head), rows)


def _sources(shown: Shown) -> Markup:
    facts = [_facts(profile) for profile in shown.profiles]
    head = ("", *(LETTERS[: len(facts)] if len(facts) > 1 else ("Model",)))
    rows = (row(name, (of[name] for of in facts)) for name in facts[0])
    return join(
        section(
            "provenance",
            "Where the numbers come from",
            element("div", table("How it was measured", head, rows), class_="models"),
        ),
        section("glossary", "Words", definitions(GLOSSARY | (SCORED if shown.scored else {}))),
        downloads("profile", table="Table"),
    )


def _facts(profile: Profile) -> dict[str, str]:
    model = profile.model
    return {
        "Name": model.name,
        "Revision": model.revision,
        "Architecture": f"{model.architecture}, {model.n_blocks} blocks of {model.hidden_size} features",
        "Precision": model.dtype,
        "Attention": profile.attn,
        "Pooling": profile.pooling,
        "Device": f"{profile.device}: {profile.hardware}",
        "Threads": str(profile.threads),
        "Repeats": f"{profile.rounds} rounds over all layers, back and forth, of up to {profile.repeats} passes a shape"
        f" in {profile.max_seconds:g} s, after up to {profile.warmup} that do not count",
        "Texts": f"random words of the vocabulary (seed {profile.seed}), no padding",
        "Memory": profile.memory,
        "Versions": ", ".join(f"{name} {version}" for name, version in profile.versions.items()),
        "Created": profile.created,
    }


# ---- numbers ------------------------------------------------------------------------------------------


def significant(value: float) -> str:
    """Return a number with three significant digits, and no exponent for large ones.

    Example:
        >>> significant(0.012345), significant(12.345), significant(12345.6)
        ('0.0123', '12.3', '12346')
    """
    return f"{value:.0f}" if abs(value) >= 1000 or not value else f"{value:#.3g}".rstrip(".").replace("-", "−")


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, with a space that does not break."""
    return f"{significant(1e3 * seconds)}\u00a0ms"


def megabytes(size: int) -> str:
    """Return bytes in millions."""
    return f"{size / 1e6:.1f}" if size < 1e8 else f"{size / 1e6:.0f}"


def _quantiles(cost: Cost) -> str:
    return f"{significant(1e3 * cost.seconds_low)}–{significant(1e3 * cost.seconds_high)}"
