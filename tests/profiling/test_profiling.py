"""What is measured of truncated models: counts are exact, times are only looked at for sense."""

import dataclasses
import gc
import itertools
import multiprocessing
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from layerprobe import context
from layerprobe.context import settings
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.values import Protocol
from layerprobe.profiling import run as measuring
from layerprobe.profiling.run import (
    count_flops,
    gauge_for,
    milliseconds,
    profile,
    profile_layers,
    random_batch,
    resident_peak_works,
)
from layerprobe.profiling.values import Cost, Profile, ProfileSettings
from layerprobe.results import words
from tests.images import save_vision
from tests.models import HIDDEN, N_BLOCKS, given, save_tiny, tiny_tokenizer

CPU = torch.device("cpu")
QUICK = ProfileSettings(lengths=(4, 10), batch_sizes=(1, 3), rounds=2, repeats=2, warmup=1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: save_tiny(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def tiny(folder: Callable[[str], Path]) -> Callable[[str], Encoder]:
    return cache(lambda name: load_encoder(str(folder(name)), device="cpu"))


@pytest.fixture(scope="session")
def profiled(folder: Callable[[str], Path]) -> Profile:
    return profile(given(folder("bert"), Model(device="cpu")), settings=QUICK)


# ---- what is measured ------------------------------------------------------------------------------------


def test_layers_and_shapes_are_in_order_times_are_positive_and_throughput_follows(profiled: Profile) -> None:
    assert [each.layer for each in profiled.layers] == list(range(N_BLOCKS + 1))
    assert profiled.shapes == ((4, 1), (4, 3), (10, 1), (10, 3))
    assert from_json(Profile, to_json(profiled)) == profiled
    assert tuple(each.parameters for each in profiled.layers) == profiled.model.parameters
    for each in profiled.layers:
        for cost in each.costs:
            assert 0 < cost.seconds_low <= cost.seconds <= cost.seconds_high
            assert cost.repeats == 6  # of two rounds with two passes; five are the least
            assert len(cost.by_round) == 2
            np.testing.assert_allclose(cost.texts_per_second * cost.seconds, cost.batch_size)
            np.testing.assert_allclose(cost.tokens_per_second, cost.texts_per_second * cost.length)


@pytest.mark.parametrize("length", [1, 4, 10])
def test_flops_of_bert_are_those_counted_by_hand(tiny: Callable[[str], Encoder], length: int) -> None:
    """Exactly: the count has only matrix products, and of these BERT has six a block and two of attention."""
    encoder, inner = tiny("bert"), 24
    batch = random_batch(encoder, length=length, batch_size=1, seed=0)
    products = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * inner  # Q, K, V, output; up, down
    block = 2 * length * products + 2 * 2 * length * length * HIDDEN  # QK' and AV
    found = [count_flops(TruncatedEncoder(encoder, layer), batch) for layer in range(N_BLOCKS + 1)]
    assert found == [block * layer for layer in range(N_BLOCKS + 1)]


@pytest.mark.parametrize("name", ["electra", "roberta", "distilbert", "albert", "eurobert", "gpt2", "llama", "t5"])
def test_flops_grow_by_the_same_amount_each_block(tiny: Callable[[str], Encoder], name: str) -> None:
    encoder = tiny(name)
    batch = random_batch(encoder, length=7, batch_size=1, seed=0)
    found = [count_flops(TruncatedEncoder(encoder, layer), batch) for layer in range(N_BLOCKS + 1)]
    steps = set(np.diff(found).tolist())
    assert len(steps) == 1
    assert steps.pop() > 0


def test_flops_do_not_depend_on_the_attention_implementation(folder: Callable[[str], Path]) -> None:
    counts = []
    for attn in ("eager", "sdpa"):
        encoder = load_encoder(Model(str(folder("bert")), device="cpu", attn=attn))
        counts.append(count_flops(TruncatedEncoder(encoder, 3), random_batch(encoder, length=6, batch_size=1, seed=0)))
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_a_layer_0_that_needs_a_block_is_told(folder: Callable[[str], Path]) -> None:
    found = profile(given(folder("deberta-v3"), Model(device="cpu")), layers=(0, 1), settings=QUICK)
    zero, one = (each.costs[0].flops for each in found.layers)
    assert zero == one
    assert "does not run without a block: FLOPs, time and memory of layer 0" in found.warnings[0]


# ---- how it is measured ----------------------------------------------------------------------------------


@pytest.fixture
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.slow
def test_rounds_go_back_and_forth_with_one_truncated_model_at_a_time(
    tiny: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch, unfrozen: None
) -> None:
    order: list[int] = []
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def recorded(encoder: Encoder, layer: int) -> TruncatedEncoder:
        assert not alive
        assert gc.get_freeze_count() > 0, "expected what was there before not to be looked through each time"
        order.append(layer)
        model = TruncatedEncoder(encoder, layer)
        alive.add(model)
        return model

    monkeypatch.setattr(measuring, "TruncatedEncoder", recorded)
    told: list[float] = []
    earlier = TruncatedEncoder(tiny("bert"), 1)
    earlier.itself = earlier  # garbage that only the collector finds
    alive.add(earlier)
    del earlier
    settings = ProfileSettings(lengths=(4,), batch_sizes=(1,), rounds=3, repeats=1, warmup=0)
    with context.settings(progress=lambda task, done, total: told.append(round(done / total, 6))):
        profile_layers(tiny("bert"), (0, 2, 3), settings)
    assert order == [0, 2, 3, 3, 2, 0, 0, 2, 3]
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert gc.get_freeze_count() == 0


def test_what_the_caller_froze_stays_frozen(tiny: Callable[[str], Encoder]) -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    profile_layers(tiny("bert"), (1,), ProfileSettings(lengths=(4,), batch_sizes=(1,), rounds=1, repeats=1, warmup=0))
    assert gc.get_freeze_count() > count // 2  # some of it is dropped by whoever held it


def test_warm_up_does_not_count_and_long_passes_are_not_repeated(
    tiny: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(np.arange(1.0, 1000.0))
    monkeypatch.setattr(measuring, "_timed_pass", lambda *given: float(next(clock)))
    settings = ProfileSettings(lengths=(4,), batch_sizes=(1,), rounds=2, repeats=3, warmup=2, max_seconds=1e9)
    (found,) = profile_layers(tiny("bert"), (1,), settings)
    # passes 1, 2 and 6, 7 warm up; 3, 4, 5 and 8, 9, 10 count
    assert (found.costs[0].seconds, found.costs[0].repeats) == (6.5, 6)
    # a warm-up, and then as many as make five at least
    clock = iter([50.0, 7.0, 8.0, 9.0, 60.0, 10.0, 99.0, 12.0])
    (found,) = profile_layers(tiny("bert"), (1,), dataclasses.replace(settings, max_seconds=0))
    assert (found.costs[0].seconds, found.costs[0].repeats, found.costs[0].by_round) == (9.5, 6, (8.0, 12.0))


def test_how_much_faster_is_said_with_its_range() -> None:
    def cost(*rounds: float) -> Cost:
        seconds, ends = float(np.median(rounds)), (min(rounds), max(rounds))
        how = {"flops": 1, "repeats": 5, "peak_memory": None, "by_round": rounds, "seconds_high": ends[1]}
        return Cost(length=4, batch_size=1, seconds=seconds, seconds_low=ends[0], **how)  # type: ignore[arg-type]

    # a slow machine slows both, and one slow pass is not what is said
    whole, part = cost(2.0, 4.0, 2.2, 2.0, 60.0), cost(1.0, 2.0, 1.0, 1.0, 1.0)
    assert part.faster_than(whole) == (2.0, 2.0, 60.0)
    # of fewer than five rounds, from the ends of both
    assert cost(1.0, 1.25).faster_than(cost(2.0, 2.5)) == pytest.approx((2.0, 1.6, 2.5))


def test_models_of_one_architecture_share_a_measurement(folder: Callable[[str], Path], tmp_path: Path) -> None:
    other = save_tiny("bert", tmp_path)
    loads: list[str] = []

    def counted(checkpoint: Any) -> Encoder:
        loads.append(checkpoint.label)
        return load(checkpoint)

    from layerprobe.encoders.loading import load

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.profiling.run.load", counted)
        patch.setattr(
            "layerprobe.profiling.run.ALONE", ProfileSettings(batch_sizes=(1,), rounds=3, repeats=1, warmup=0)
        )
        models = [given(str(each), Model(device="cpu")) for each in (folder("bert"), other, folder("electra"))]
        shares: list[float] = []
        with settings(progress=lambda _, done, total: shares.append(done / total)):
            first, second, third = milliseconds(models)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert first == second != third
    assert len(first) == N_BLOCKS + 1
    assert all(low <= value <= high for value, low, high in first)
    assert [loads.count(label) for label in dict.fromkeys(loads)] == [3, 3]
    assert loads[:4] == [loads[0], loads[1], loads[1], loads[0]]


@pytest.mark.skipif(sys.platform != "linux" or not resident_peak_works(), reason="the kernel resets no high-water mark")
def test_resident_memory_sees_what_was_freed_again() -> None:
    _, restart, peak = gauge_for(CPU)
    restart()
    np.ones(50_000_000, dtype=np.uint8).sum()
    assert 49e6 < (peak() or 0) < 70e6
    restart()
    assert (peak() or 0) < 20e6


def test_where_memory_cannot_be_told_it_is_none(
    tiny: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.profiling.run.resident_peak_works", lambda: False)
    assert gauge_for(CPU)[0] == "not measured: there is no reliable way on cpu"
    (found,) = profile_layers(tiny("bert"), (1,), ProfileSettings(lengths=(4,), rounds=1, repeats=1))
    assert [cost.peak_memory for cost in found.costs] == [None, None]


# ---- images ----------------------------------------------------------------------------------------------


def test_images_have_one_length(tmp_path: Path) -> None:
    model, few = str(save_vision("vit", tmp_path / "vit")), dataclasses.replace(QUICK, lengths=None)
    found = profile(given(model, Model(device="cpu")), settings=few)
    assert found.unit == "image"
    assert found.shapes == ((5, 1), (5, 3))
    assert found.layers[0].parameters < found.layers[-1].parameters
    flops = [each.costs[0].flops for each in found.layers]
    assert all(after > before > 0 for before, after in itertools.pairwise(flops))
    assert from_json(Profile, to_json(found)) == found
    assert (
        words.tiles(found.conclusion)[1][1][:32],
        words.tiles(found.conclusion)[2][1][:17],
    ) == ("for 1 image of 5 tokens at layer", "images per second")
    with pytest.raises(DataError, match=r"expected no lengths for .*, which has 5 tokens for every image, got 4, 10"):
        profile(given(model, Model(device="cpu")), settings=QUICK)
    with pytest.raises(DataError, match="an image has no last token"):
        profile(given(model, Model(device="cpu", pooling="last")), settings=few)


# ---- what is refused -------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layers": (0, 4, 7)}, r"expected layers from 0 to 3 of .*, got 4, 7"),
    ({"layers": (0.5, 1.0)}, r"expected layers as whole numbers, .* got 0\.5"),
    ({"layers": ()}, r"expected layers of .* to profile, got none"),
    ({"lengths": (10, 65, 100)}, r"expected lengths up to 64 tokens, the limit of .*, got 65, 100"),
    ({"lengths": (0,)}, "expected lengths of at least one token"),
    ({"batch_sizes": (0, 1)}, "expected batches of at least one text"),
    ({"rounds": 0}, "expected at least one round"),
    ({"repeats": 0}, "expected at least one repeat, got .* repeats=0"),
    ({"warmup": -1}, "expected a warm-up of 0 or more passes"),
    ({"max_seconds": float("nan")}, "expected a number of seconds of 0 or more"),
    ({"seed": -1}, r"expected a seed from 0 to 2\^63 - 1"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_measured_is_refused(
    folder: Callable[[str], Path], changes: dict[str, Any], message: str
) -> None:
    def measure(layers: tuple[int, ...] | None = None, **settings: Any) -> None:
        profile(
            given(folder("bert"), Model(device="cpu")), layers=layers, settings=dataclasses.replace(QUICK, **settings)
        )

    with pytest.raises(DataError, match=message) as caught:
        measure(**changes)
    assert "\n" not in str(caught.value)


def test_a_shape_that_was_not_measured_is_refused(profiled: Profile) -> None:
    with pytest.raises(DataError, match=r"expected one of the measured shapes .*, got \(5, 1\)"):
        profiled.layers[0].cost(5, 1)


@pytest.mark.slow
@pytest.mark.skipif(not resident_peak_works(), reason="the kernel does not let the high-water mark be reset")
def test_a_step_of_fine_tuning_takes_more_than_the_moments_of_all_weights(tmp_path: Path) -> None:
    size = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": N_BLOCKS, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=61, **size), add_pooling_layer=False).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    # a process of its own: what other tests left in this one may be freed meanwhile, and count against the rise
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        (whole, weights), (of_adapters, _) = fresh.map(training_memory, itertools.repeat(tmp_path), (0, 1))
    assert (whole or 0) > 2.7 * weights  # weights, gradients, two moments, less what heap is used again
    assert (of_adapters or 0) < 2.5 * weights


def training_memory(folder: Path, rank: int) -> tuple[int | None, int]:
    """Return the bytes that a step of fine-tuning takes, with adapters of a rank or none, and those of the weights."""
    how = dataclasses.replace(QUICK, lengths=(8,), batch_sizes=(1,), rounds=1, training=Protocol(lora=rank))
    measured = profile(given(folder, Model(device="cpu")), layers=[N_BLOCKS], settings=how)
    assert from_json(Profile, to_json(measured)) == measured
    return measured.layers[0].costs[0].training_memory, 4 * measured.layers[0].parameters
