"""What truncated models cost to serve, as a page. Knows profiles with their scores, no studies."""

from collections.abc import Iterator, Mapping, Sequence

from layerprobe.names import times_as_fast
from layerprobe.profiling.figures import Ranged, latency, score_for_cost, throughput
from layerprobe.profiling.values import Cost, LayerProfile, Profile, Profiles, megabytes
from layerprobe.results import numbers
from layerprobe.results.numbers import significant
from layerprobe.results.parts import facts_table, section, table_of
from layerprobe.results.values import Card, Figure, Page
from layerprobe.stats.seeds import front_beyond_noise

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def profile_page(result: Profile | Profiles) -> Page:
    """Return the page of what models cost to serve, and of what fine-tuning showed of their layers."""
    shown = result if isinstance(result, Profiles) else Profiles(profiles=(result,), scores=((),))
    profiles, several = shown.profiles, len(shown.profiles) > 1
    facts = [_facts(profile) for profile in profiles]
    return Page(
        title=f"What {' and '.join(shown.labels)} cost{'' if several else 's'} to serve",
        overline="layerprobe · what it costs to serve",
        heading=" and ".join(shown.labels),
        lead=tuple(_sentence(shown, index) for index in range(len(profiles))),
        cards={
            f"{letter}: {label}" if several else "": _cards(shown, profile)
            for letter, label, profile in zip(LETTERS, shown.labels, profiles, strict=False)
        },
        warnings=tuple(warning for profile in profiles for warning in profile.warnings),
        sections=(
            section("pareto", "Score versus cost", *_pareto(shown)),
            section("latency", "Latency by layer", _latency(shown)),
            section("throughput", "Throughput by layer", _throughput(shown)),
            section("costs", "Every layer and shape", table_of(shown.table), kind="dense"),
        ),
        provenance=(facts_table("How it was measured", LETTERS[: len(facts)] if several else ("Model",), facts),),
        terms=("Layer", "Latency", "Throughput", "FLOPs", *(("Pareto front", "TMFT") if shown.metric else ())),
        result=shown,
        stem="profile",
    )


# ---- sections -----------------------------------------------------------------------------------------


def _sentence(shown: Profiles, index: int) -> str:
    profile = shown.profiles[index]
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    whole = _cost(shown, last)
    sentence = f"{shown.labels[index]} needs {milliseconds(whole.seconds)} at layer {last.layer} for {_batch(shown)}"
    if middle is last:
        return f"{sentence}."
    part = _cost(shown, middle)
    return (
        f"{sentence} and {milliseconds(part.seconds)} truncated at layer {middle.layer}, "
        f"{times_as_fast(part.faster_than(whole))}."
    )


def _cards(shown: Profiles, profile: Profile) -> tuple[Card, ...]:
    first, last = profile.layers[0], profile.layers[-1]
    cost, start, biggest = _cost(shown, last), _cost(shown, first), last.costs[-1]
    peak = "—" if biggest.peak_memory is None else f"{megabytes(biggest.peak_memory)}\u00a0MB"
    batch = f"{biggest.batch_size} {shown.unit}s of {biggest.length} tokens"
    added = Card("A block adds", "—", "one layer only")
    if blocks := last.layer - first.layer:
        seconds, flops = (cost.seconds - start.seconds) / blocks, (cost.flops - start.flops) / blocks
        added = Card("A block adds", milliseconds(seconds), f"and {significant(flops / 1e9)} GFLOPs")
    low, high = (significant(1e3 * seconds) for seconds in (cost.seconds_low, cost.seconds_high))
    return (
        Card(f"Latency at layer {last.layer}", milliseconds(cost.seconds), f"5–95\u00a0%: {low}–{high} ms"),
        added,
        Card(
            f"{shown.unit.capitalize()}s per second, batch of {biggest.batch_size}",
            significant(biggest.texts_per_second),
            f"{significant(biggest.tokens_per_second)} tokens per second",
        ),
        Card(
            "Peak memory",
            peak,
            f"{batch}, {numbers.millions(last.parameters)} parameters",
        ),
    )


def _pareto(shown: Profiles) -> Iterator[Figure]:
    metric = shown.metric
    if metric is None:
        return
    times = [{each.layer: _milliseconds(_cost(shown, each)) for each in profile.layers} for profile in shown.profiles]
    sizes = [{each.layer: (each.parameters / 1e6,) * 3 for each in profile.layers} for profile in shown.profiles]
    for name, costs, axis, hover, unit, reading in (
        ("score-latency", times, f"Latency of {_batch(shown)} (ms)", "%{x:.3~g}", "ms", "bars the ranges of times"),
        ("score-size", sizes, "Parameters (millions)", "%{x:.4~g}", "M parameters", "the line is the Pareto front"),
    ):
        yield Figure(
            name,
            score_for_cost(shown.labels, costs, shown.by_layer, metric=metric, axis=axis, unit=f"{hover} {unit}"),
            _front_words(shown, costs, unit),
            f"Labels are layers, {reading}. Costs whose ranges overlap count as equal.",
        )


def _front_words(shown: Profiles, costs: Sequence[Mapping[int, Ranged]], unit: str) -> str:
    points = [
        (cost[layer], scored[layer].mean, f"{label} at layer {layer}")
        for label, cost, scored in zip(shown.labels, costs, shown.by_layer, strict=True)
        for layer in cost
        if layer in scored
    ]
    front = front_beyond_noise(points, cost=lambda point: point[0][1:], score=lambda point: point[1])
    best = (f"{name} ({significant(cost[0])} {unit}, {numbers.number(score)})" for cost, score, name in front)
    return f"Nothing else is shown to be both cheaper and better than {', '.join(best)}."


def _latency(shown: Profiles) -> Figure:
    finding = " ".join(_sentence(shown, index) for index in range(len(shown.profiles)))
    reading = "Bars are the 5 and 95\u00a0% quantiles of all repeats."
    return Figure("latency", latency(shown), finding, reading)


def _throughput(shown: Profiles) -> Figure:
    said = []
    for label, profile in zip(shown.labels, shown.profiles, strict=True):
        cost = profile.layers[-1].costs[-1]
        embedded = f"{significant(cost.texts_per_second)} {shown.unit}s of {cost.length} tokens per second"
        said.append(f"In batches of {cost.batch_size}, {label} embeds {embedded} at layer {profile.layers[-1].layer}.")
    return Figure("throughput", throughput(shown), " ".join(said), "The axis is logarithmic.")


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


# ---- numbers ------------------------------------------------------------------------------------------


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, with a space that does not break."""
    return f"{significant(1e3 * seconds)}\u00a0ms"


def _milliseconds(cost: Cost) -> Ranged:
    return 1e3 * cost.seconds, 1e3 * cost.seconds_low, 1e3 * cost.seconds_high


def _cost(shown: Profiles, each: LayerProfile) -> Cost:
    """Return the cost whose time stands for a layer."""
    return each.cost(*shown.shape)


def _batch(shown: Profiles) -> str:
    length, size = shown.shape
    return f"{f'one {shown.unit}' if size == 1 else f'a batch of {size} {shown.unit}s'} of {length} tokens"
