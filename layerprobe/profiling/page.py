"""What truncated models cost to serve, as a page. Knows profiles with their scores, no studies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from layerprobe.metrics.names import points
from layerprobe.names import times_as_fast
from layerprobe.profiling.values import Cost, LayerProfile, Profile, Profiles, megabytes
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.draw import drawn
from layerprobe.results.numbers import significant
from layerprobe.results.page import page_of
from layerprobe.results.parts import facts_table, section
from layerprobe.results.table import Table, columns_of
from layerprobe.results.values import Page, Section

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def profile_page(result: Profile | Profiles) -> Page:
    """Return the page of serving costs, with fine-tuned scores by layer where there are some."""
    models = result if isinstance(result, Profiles) else Profiles(profiles=(result,), scores=((),))
    profiles, several = models.profiles, len(models.profiles) > 1
    sentences = tuple(_sentence(models, index) for index in range(len(profiles)))
    latency, *further = _sections(models)
    page = page_of(
        result,
        table=models.table,
        heading=f"What {' and '.join(models.labels)} cost to serve" if several else _heading(models, profiles[0]),
        kind="what it costs to serve",
        about=" and ".join(models.labels),
        lead=sentences,
        facts=() if several else _facts_line(models, profiles[0]),
        first=latency.parts[0],
        warnings=tuple(warning for profile in profiles for warning in profile.warnings),
        sections=further,
        provenance=(
            facts_table(
                "How it was measured", LETTERS[: len(profiles)] if several else ("Model",), list(map(_facts, profiles))
            ),
        ),
        stem="layerprobe-profile",
    )
    return replace(page, result=models)


# ---- charts -------------------------------------------------------------------------------------------


def _sections(models: Profiles) -> Iterator[Section]:
    """Yield latency and throughput by layer, and where there are scores, these against time and size."""
    length, size = models.shape
    smallest, largest = _measured(models, size), _measured(models, max(size for _, size in models.profiles[0].shapes))
    time = Line("milliseconds", interval="quantiles")
    yield section("latency", "Latency by layer", drawn(smallest, Chart(lines=(time,), name="latency", by="series")))
    if models.metric is not None:
        cost = Chart(lines=(Line("score", interval="ends"),), kind="cost", by="model", label="layer")
        longest = smallest.where("length", length)
        charts = (
            (replace(cost, name="score-latency", x="milliseconds", x_interval="quantiles"), "Score versus time"),
            (replace(cost, name="score-size", x="millions"), "Score versus size"),
        )
        for chart, heading in charts:
            yield section(chart.name, heading, drawn(longest, chart))
    throughput = Chart(lines=(Line("a_second"),), name="throughput", by="series")
    yield section("throughput", "Throughput by layer", drawn(largest, throughput))


def _measured(models: Profiles, size: int) -> Table:
    """Return the table behind the charts for one batch size: one row per model, length and layer."""
    lengths, several = (
        sorted({length for length, _ in models.profiles[0].shapes}, reverse=True),
        len(models.profiles) > 1,
    )
    rows = [
        (label, length, layer, layer.cost(length, size), scored.get(layer.layer))
        for label, profile, scored in zip(models.labels, models.profiles, models.by_layer, strict=True)
        for length in lengths
        for layer in profile.layers
    ]
    column, outcome = columns_of(rows), columns_of(row[4] for row in rows)
    latency = Quantity(f"milliseconds for {'one ' + models.unit if size == 1 else f'a batch of {size}'}", best="lower")
    throughput = Quantity(f"{models.unit}s per second, batches of {size}", best="higher")
    return Table(
        columns=(
            column("model", lambda row: row[0]),
            column("series", lambda row: f"{row[0]}, {row[1]} tokens" if several else f"{row[1]} tokens"),
            column("length", lambda row: row[1]),
            column("layer", lambda row: row[2].layer),
            column(
                "millions",
                lambda row: row[2].parameters / 1e6,
                form=".4g",
                quantity=Quantity("parameters (millions)", best="lower"),
            ),
            column("milliseconds", lambda row: 1e3 * row[3].seconds, form=".3g", unit="ms", quantity=latency),
            column(
                "quantiles", lambda row: _range(row[3]), title="5 to 95 %", form=".3g", interval=True, over="of repeats"
            ),
            column("a_second", lambda row: row[3].texts_per_second, form=".4g", quantity=throughput),
            outcome(
                "score", lambda tuned: tuned.mean, form=".2f", quantity=points(models.metric or "accuracy", "test")
            ),
            outcome(
                "ends", lambda tuned: tuned.interval, title="interval", form=".2f", interval=True, over="of the mean"
            ),
        )
    )


def _range(cost: Cost) -> tuple[float, float]:
    return 1e3 * cost.seconds_low, 1e3 * cost.seconds_high


# ---- words --------------------------------------------------------------------------------------------


def _heading(models: Profiles, profile: Profile) -> str:
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    times = [f"{milliseconds(_cost(models, layer).seconds)} at layer {layer.layer}" for layer in (last, middle)]
    return f"{_batch(models).capitalize()} takes {', '.join(dict.fromkeys(times))}"


def _sentence(models: Profiles, index: int) -> str:
    profile = models.profiles[index]
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    whole = _cost(models, last)
    sentence = f"{models.labels[index]} needs {milliseconds(whole.seconds)} at layer {last.layer} for {_batch(models)}"
    if middle is last:
        return f"{sentence}."
    part = _cost(models, middle)
    return (
        f"{sentence} and {milliseconds(part.seconds)} truncated at layer {middle.layer}, "
        f"{times_as_fast(part.faster_than(whole))}."
    )


def _facts_line(models: Profiles, profile: Profile) -> Sequence[str]:
    """Return what a block adds, how many texts a second, and the memory."""
    first, last = profile.layers[0], profile.layers[-1]
    cost, start, biggest, facts = _cost(models, last), _cost(models, first), last.costs[-1], []
    if blocks := last.layer - first.layer:
        seconds, flops = (cost.seconds - start.seconds) / blocks, (cost.flops - start.flops) / blocks
        facts.append(f"a block adds {milliseconds(seconds)} and {significant(flops / 1e9)} GFLOPs")
    facts.append(
        f"{significant(biggest.texts_per_second)} {models.unit}s per second in batches of {biggest.batch_size}"
    )
    if biggest.peak_memory is not None:
        facts.append(f"{megabytes(biggest.peak_memory)}\u00a0MB peak memory")
    return (*facts, f"{numbers.millions(last.parameters)} parameters")


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
        "Repeats": f"{profile.rounds} rounds over all layers, back and forth, of up to {profile.repeats} passes per"
        f" shape in {profile.max_seconds:g} s, after up to {profile.warmup} that do not count",
        "Texts": f"random words of the vocabulary (seed {profile.seed}), no padding",
        "Memory": profile.memory,
        "Versions": ", ".join(f"{name} {version}" for name, version in profile.versions.items()),
        "Created": profile.created,
    }


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, with a space that does not break."""
    return f"{significant(1e3 * seconds)}\u00a0ms"


def _cost(models: Profiles, layer: LayerProfile) -> Cost:
    """Return the cost whose time stands for a layer."""
    return layer.cost(*models.shape)


def _batch(models: Profiles) -> str:
    length, size = models.shape
    return f"{f'one {models.unit}' if size == 1 else f'a batch of {size} {models.unit}s'} of {length} tokens"
