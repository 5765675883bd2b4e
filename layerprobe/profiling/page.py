"""What truncated models cost to serve, as a page. Knows profiles, and studies for their scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import DataError
from layerprobe.files.serialisation import to_json
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.metrics.seeds import pareto_front
from layerprobe.names import distinct_names
from layerprobe.profiling.figures import Scores, latency, score_for_cost, smallest_batch, throughput
from layerprobe.profiling.values import Cost, LayerProfile, Profile
from layerprobe.results import numbers
from layerprobe.results.markup import Markup
from layerprobe.results.numbers import significant
from layerprobe.results.parts import Row, facts_table, folded, section, table
from layerprobe.results.table import csv_text
from layerprobe.results.values import Card, Figure, Page, Section
from layerprobe.study.values import Study

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CSV_COLUMNS = (
    *("model", "layer", "parameters", "length", "batch_size", "flops", "seconds", "seconds_low", "seconds_high"),
    *("texts_per_second", "tokens_per_second", "repeats", "peak_memory", "metric", "tmft_mean"),
)


Identified = ModelDescription | Checkpoint
"""A model that can be told from others."""


def scores_of(studies: Sequence[Study], model: Identified) -> dict[int, LayerOutcome]:
    """Return what the studies' fine-tuning showed of a model, as their model or their reference, by layer."""
    scores = {}
    for study in studies:
        pairs = (study.comparison.model, study.outcomes), (study.comparison.reference, study.reference_outcomes)
        for described, outcomes in pairs:
            if _same(described, model):
                scores.update({outcome.layer: outcome for outcome in outcomes})
    return dict(sorted(scores.items()))


def check_studies(studies: Sequence[Study], models: Sequence[Identified]) -> None:
    """Check that every study has fine-tuning scores of one of the models.

    Raises:
        DataError: If one is a study of other models, without fine-tuning of these, or scored by another metric.
    """
    if len(metrics := dict.fromkeys(study.metric for study in studies)) > 1:
        raise DataError(
            f"expected studies scored by one metric, got {' and '.join(map(metric_title, metrics))}: "
            "give those of one kind of task"
        )
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


def profile_page(profiles: Sequence[Profile], studies: Sequence[Study] = ()) -> Page:
    """Return the page of profiles of the same lengths and batch sizes, with the scores of their layers in studies.

    Raises:
        DataError: If the profiles are of different shapes, or a study is of other models.
    """
    if len({(profile.unit, profile.shapes) for profile in profiles}) != 1:
        raise DataError(
            "expected at least one profile, all of texts or all of images, all of the same lengths and batch sizes"
        )
    check_studies(studies, [profile.model for profile in profiles])
    shown = _Shown(
        profiles=profiles,
        scores=[scores_of(studies, profile.model) for profile in profiles],
        labels=[numbers.label(name) for name in distinct_names([profile.model.name for profile in profiles])],
    )
    several = len(profiles) > 1
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
            section("pareto", "Score for the cost", *_pareto(shown)),
            section("latency", "Latency by layer", _latency(shown)),
            section("throughput", "Throughput by layer", _throughput(shown)),
            _costs(shown),
        ),
        provenance=(facts_table("How it was measured", LETTERS[: len(facts)] if several else ("Model",), facts),),
        terms=("Layer", "Latency", "Throughput", "FLOPs", *(("Pareto front", "TMFT") if shown.metric else ())),
        data=to_json({"profiles": list(profiles), "scores": [list(scored.values()) for scored in shown.scores]}),
        table=csv_text(CSV_COLUMNS, _rows(shown)),
        stem="profile",
    )


def profile_of(profile: Profile) -> Page:
    """Return the page of one profile."""
    return profile_page([profile])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """Profiles with what is shown beside them."""

    profiles: Sequence[Profile]
    scores: Scores
    labels: Sequence[str]

    @property
    def metric(self) -> str | None:
        """What the scores of profiled layers are; None without any."""
        pairs = zip(self.profiles, self.scores, strict=True)
        scored = [scores[each.layer] for profile, scores in pairs for each in profile.layers if each.layer in scores]
        return scored[0].primary if scored else None

    @property
    def shape(self) -> tuple[int, int]:
        """Length and batch size whose time stands for a layer: the longest texts, the smallest batch."""
        return max(length for length, _ in self.profiles[0].shapes), smallest_batch(self.profiles)

    @property
    def batch(self) -> str:
        """That batch in words."""
        length, size = self.shape
        return f"{f'one {self.unit}' if size == 1 else f'a batch of {size} {self.unit}s'} of {length} tokens"

    @property
    def unit(self) -> str:
        """What they read."""
        return self.profiles[0].unit

    def latency(self, each: LayerProfile) -> Cost:
        """Return the cost whose time stands for a layer."""
        return each.cost(*self.shape)


def _rows(shown: _Shown) -> Iterator[tuple[object, ...]]:
    for profile, scored in zip(shown.profiles, shown.scores, strict=True):
        for each in profile.layers:
            outcome = scored.get(each.layer)
            score = (outcome.primary, outcome.mean) if outcome else (None, None)
            for cost in each.costs:
                times = cost.seconds, cost.seconds_low, cost.seconds_high, cost.texts_per_second, cost.tokens_per_second
                shape = cost.length, cost.batch_size, cost.flops
                beside = cost.repeats, cost.peak_memory, *score
                yield (profile.model.name, each.layer, each.parameters, *shape, *times, *beside)


# ---- sections -----------------------------------------------------------------------------------------


def _sentence(shown: _Shown, index: int) -> str:
    profile = shown.profiles[index]
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    whole = shown.latency(last)
    sentence = f"{shown.labels[index]} needs {milliseconds(whole.seconds)} at layer {last.layer} for {shown.batch}"
    if middle is last:
        return f"{sentence}."
    part = shown.latency(middle)
    return (
        f"{sentence} and {milliseconds(part.seconds)} truncated at layer {middle.layer}, "
        f"{significant(whole.seconds / part.seconds)} times as fast."
    )


def _cards(shown: _Shown, profile: Profile) -> tuple[Card, ...]:
    first, last = profile.layers[0], profile.layers[-1]
    cost, start, biggest = shown.latency(last), shown.latency(first), last.costs[-1]
    peak = "—" if biggest.peak_memory is None else f"{megabytes(biggest.peak_memory)}\u00a0MB"
    batch = f"{biggest.batch_size} {shown.unit}s of {biggest.length} tokens"
    added = Card("A block adds", "—", "one layer only")
    if blocks := last.layer - first.layer:
        seconds, flops = (cost.seconds - start.seconds) / blocks, (cost.flops - start.flops) / blocks
        added = Card("A block adds", milliseconds(seconds), f"and {significant(flops / 1e9)} GFLOPs")
    return (
        Card(f"Latency at layer {last.layer}", milliseconds(cost.seconds), f"5–95\u00a0%: {_quantiles(cost)} ms"),
        added,
        Card(
            f"{shown.unit.capitalize()}s a second, by {biggest.batch_size}",
            significant(biggest.texts_per_second),
            f"{significant(biggest.tokens_per_second)} tokens a second",
        ),
        Card(
            "Peak memory",
            peak,
            f"{batch}, {numbers.millions(last.parameters)} parameters",
        ),
    )


def _pareto(shown: _Shown) -> Iterator[Figure]:
    metric = shown.metric
    if metric is None:
        return
    times = [{each.layer: 1e3 * shown.latency(each).seconds for each in profile.layers} for profile in shown.profiles]
    sizes = [{each.layer: each.parameters / 1e6 for each in profile.layers} for profile in shown.profiles]
    for name, costs, axis, hover, unit, limited in (
        ("score-latency", times, f"Latency of {shown.batch} (ms)", "%{x:.3~g}", "ms", "time"),
        ("score-size", sizes, "Parameters (millions)", "%{x:.4~g}", "M parameters", "memory for weights"),
    ):
        yield Figure(
            name,
            score_for_cost(shown.labels, costs, shown.scores, metric=metric, axis=axis, unit=f"{hover} {unit}"),
            _front_words(shown, costs, unit),
            f"Labels are layers, the line is the Pareto front: the best score for at most so much {limited}.",
        )


def _front_words(shown: _Shown, costs: Sequence[Mapping[int, float]], unit: str) -> str:
    points = [
        (cost[layer], scored[layer].mean, f"{label} at layer {layer}")
        for label, cost, scored in zip(shown.labels, costs, shown.scores, strict=True)
        for layer in cost
        if layer in scored
    ]
    front = pareto_front(points, cost=lambda point: point[0], score=lambda point: point[1])
    best = (f"{name} ({significant(cost)} {unit}, {numbers.number(score)})" for cost, score, name in front)
    return f"Nothing else is both cheaper and better than {', '.join(best)}."


def _latency(shown: _Shown) -> Figure:
    finding = " ".join(_sentence(shown, index) for index in range(len(shown.profiles)))
    reading = "Bars are the 5 and 95\u00a0% quantiles of all repeats."
    return Figure("latency", latency(shown.profiles, shown.labels), finding, reading)


def _throughput(shown: _Shown) -> Figure:
    said = []
    for label, profile in zip(shown.labels, shown.profiles, strict=True):
        cost = profile.layers[-1].costs[-1]
        embedded = f"{significant(cost.texts_per_second)} {shown.unit}s of {cost.length} tokens a second"
        said.append(f"In batches of {cost.batch_size}, {label} embeds {embedded} at layer {profile.layers[-1].layer}.")
    return Figure("throughput", throughput(shown.profiles, shown.labels), " ".join(said), "The axis is logarithmic.")


def _costs(shown: _Shown) -> Section:
    tables = (
        folded(
            f"{length} tokens, {f'one {shown.unit}' if size == 1 else f'batches of {size}'}",
            _cost_table(shown, length, size),
            opened=index == 0,
        )
        for index, (length, size) in enumerate(shown.profiles[0].shapes)
    )
    named = [f"{letter} is {profile.model.name}" for letter, profile in zip(LETTERS, shown.profiles, strict=False)]
    return section("costs", "Every layer and shape", f"{', '.join(named)}." if len(named) > 1 else None, *tables)


def _cost_table(shown: _Shown, length: int, size: int) -> Markup | None:
    layers = sorted({each.layer for profile in shown.profiles for each in profile.layers})
    rows = ([("Layer", str(layer)), *_all_costs(shown, layer, length, size)] for layer in layers)
    return table(f"Costs of {length} tokens in batches of {size}", rows)


def _all_costs(shown: _Shown, layer: int, length: int, size: int) -> Row:
    """Yield the costs of a layer in every profile, with dashes where a profile has no such layer."""
    several = len(shown.profiles) > 1
    for letter, profile, scored in zip(LETTERS, shown.profiles, shown.scores, strict=False):
        profiled = {each.layer: each for each in profile.layers}
        of_layer = profiled.get(layer, profile.layers[0])
        for head, cell in _costs_of(of_layer, scored, shown.metric, length, size, shown.unit):
            yield f"{letter}: {head}" if several else head, cell if layer in profiled else "–"


def _costs_of(
    each: LayerProfile, scored: Mapping[int, LayerOutcome], metric: str | None, length: int, size: int, unit: str
) -> Row:
    cost = each.cost(length, size)
    yield "Parameters", numbers.millions(each.parameters)
    yield f"GFLOPs a {unit}", significant(cost.flops / 1e9)
    yield "ms a batch", significant(1e3 * cost.seconds)
    yield "5–95\u00a0%", _quantiles(cost)
    yield f"{unit.capitalize()}s/s", significant(cost.texts_per_second)
    yield "Tokens/s", significant(cost.tokens_per_second)
    yield "Memory (MB)", "–" if cost.peak_memory is None else megabytes(cost.peak_memory)
    if cost.training_memory is not None:
        yield "Fine-tuning (MB)", megabytes(cost.training_memory)
    if metric:
        yield f"TMFT {metric_title(metric)}", numbers.number(scored[each.layer].mean) if each.layer in scored else "–"


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


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, with a space that does not break."""
    return f"{significant(1e3 * seconds)}\u00a0ms"


def megabytes(size: int) -> str:
    """Return bytes in millions."""
    return f"{size / 1e6:.1f}" if size < 1e8 else f"{size / 1e6:.0f}"


def _quantiles(cost: Cost) -> str:
    return f"{significant(1e3 * cost.seconds_low)}–{significant(1e3 * cost.seconds_high)}"
