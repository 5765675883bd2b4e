"""What truncated models cost to serve, as a page. Knows profiles with their scores."""

from collections.abc import Sequence

from layerprobe.names import times_as_fast
from layerprobe.profiling.values import Cost, LayerProfile, Profile, Profiles, megabytes
from layerprobe.results import numbers
from layerprobe.results.numbers import significant
from layerprobe.results.page import page_of
from layerprobe.results.parts import facts_table
from layerprobe.results.values import Page

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def profile_page(result: Profile | Profiles) -> Page:
    """Return the page of serving costs, with fine-tuned scores by layer where there are some."""
    models = result if isinstance(result, Profiles) else Profiles(profiles=(result,), scores=((),))
    profiles, several = models.profiles, len(models.profiles) > 1
    heading = f"What {' and '.join(models.labels)} cost to serve"
    faster = [_faster(models, profile) for profile in profiles]
    lead = [
        f"{label}: {_heading(models, profile)}. {more}"
        for label, profile, more in zip(models.labels, profiles, faster, strict=True)
    ]
    names = LETTERS[: len(profiles)] if several else ("Model",)
    return page_of(
        models,
        heading=heading if several else numbers.capitalised(_heading(models, profiles[0])),
        kind="what it costs to serve",
        about=" and ".join(models.labels),
        lead=lead if several else tuple(filter(None, faster)),
        facts=() if several else _facts_line(models, profiles[0]),
        warnings=tuple(warning for profile in profiles for warning in profile.warnings),
        provenance=(facts_table("How it was measured", names, list(map(_facts, profiles))),),
    )


# ---- words --------------------------------------------------------------------------------------------


def _heading(models: Profiles, profile: Profile) -> str:
    """Return what the whole model takes, and what half of it does."""
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    times = [f"{milliseconds(_cost(models, layer).seconds)} at layer {layer.layer}" for layer in (last, middle)]
    length, size = models.shape
    batch = f"one {models.unit}" if size == 1 else f"a batch of {size} {models.unit}s"
    return f"{batch} of {length} tokens takes {', '.join(dict.fromkeys(times))}"


def _faster(models: Profiles, profile: Profile) -> str:
    last, middle = profile.layers[-1], profile.layers[len(profile.layers) // 2]
    if middle is last:
        return ""
    return f"Layer {middle.layer} is {times_as_fast(_cost(models, middle).faster_than(_cost(models, last)))}."


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
