"""From texts and an objective to a folder: what is written, interrupted, refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json
from layerprobe.lab.pretraining.masking import MaskedBatch
from layerprobe.lab.pretraining.models import build_encoder
from layerprobe.lab.pretraining.run import prepare
from layerprobe.lab.pretraining.values import OBJECTIVES, Pretraining
from layerprobe.tasks.loading import load_corpus
from tests.lab.pretraining.jobs import SIZE, STEPS, TEXTS, job, protocol_of
from tests.models import given

TRAINED = tuple(name for name, objective in OBJECTIVES.items() if objective.builder is not None)
WITH_GENERATOR = tuple(name for name, row in OBJECTIVES.items() if row.has_generator)
Made = dict[str, tuple[Pretraining, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An encoder by every objective, without an interruption."""
    folder = tmp_path_factory.mktemp("pretrained")
    return {name: (job(name, folder / name), folder / name) for name in OBJECTIVES}


# ---- what is written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_the_folder_is_an_ordinary_checkpoint(name: str, made: Made, tmp_path: Path) -> None:
    found, out = made[name]
    assert from_json(Pretraining, (out / "pretraining.json").read_text()) == found
    model, info = AutoModel.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (2, 16)
    assert sum(p.numel() for p in model.parameters()) == found.encoder_parameters
    assert (out / "generator").is_dir() == (name in WITH_GENERATOR)
    encoder = load_encoder(str(out), device="cpu")
    assert (encoder.description.architecture, encoder.description.n_blocks) == ("electra", 2)
    stored = extract(given(out, Model(device="cpu", cache_dir=tmp_path)), TEXTS[:8])
    assert stored.n_layers == 3
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert f"- {name}\n" in card


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_the_generator_is_a_model_of_its_own(name: str, made: Made) -> None:
    out = made[name][1]
    generator, info = AutoModel.from_pretrained(out / "generator", output_loading_info=True)
    encoder = AutoModel.from_pretrained(out)
    assert not info["missing_keys"]
    assert (generator.config.num_hidden_layers, generator.config.hidden_size) == (2, 8)
    words = [model.embeddings.word_embeddings.weight for model in (generator, encoder)]
    assert torch.equal(*words)
    assert (
        AutoTokenizer.from_pretrained(out / "generator").get_vocab() == AutoTokenizer.from_pretrained(out).get_vocab()
    )


@pytest.mark.parametrize("name", TRAINED)
def test_every_part_is_measured_and_its_loss_falls(name: str, made: Made) -> None:
    found = made[name][0]
    assert [each.step for each in found.metrics] == [0, 4, 8, STEPS]
    first, last = found.metrics[0], found.metrics[-1]
    assert first.train == {}
    for part in last.train:
        before, after = first.held_out[part], last.held_out[part]
        assert before is not None
        assert after is not None
        assert after < before, part
    assert set(last.held_out) == {
        "mlm": {"mlm_loss", "mlm_accuracy"},
        "replace-mlm": {"mlm_loss", "mlm_accuracy", "generator_loss", "generator_accuracy"},
        "all-tokens-mlm": {
            *("mlm_loss", "mlm_accuracy", "mlm_masked_accuracy", "generator_loss", "generator_accuracy")
        },
    }.get(
        name,
        {
            *("generator_loss", "generator_accuracy", "discriminator_loss", "discriminator_accuracy"),
            *("discriminator_precision", "discriminator_recall", "discriminator_replaced"),
        },
    )
    assert (found.n_texts, found.n_held_out) == (54, 6)
    assert found.n_tokens > 0
    assert found.tokens_per_second > 0


def test_a_random_encoder_is_where_the_others_began(made: Made) -> None:
    found, out = made["random"]
    assert (found.metrics, found.n_tokens, found.trained_parameters) == ((), 0, 0)
    fresh = build_encoder(protocol_of("mlm"), vocab_size=found.vocab_size, pad_id=0, seed=0).state_dict()
    for name, tensor in AutoModel.from_pretrained(out).state_dict().items():
        assert torch.equal(tensor, fresh[name]), name


def test_all_objectives_share_a_tokenizer_and_a_budget(made: Made) -> None:
    first = made["mlm"][0]
    for name in OBJECTIVES:
        found = made[name][0]
        assert found.tokenizer_digest == first.tokenizer_digest
        assert found.corpus_digest == first.corpus_digest
        assert found.n_tokens == (0 if name == "random" else first.n_tokens)
    assert len({found.fingerprint for found, _ in made.values()}) == len(OBJECTIVES)


@pytest.mark.parametrize("name", TRAINED[1:])
def test_two_objectives_see_the_same_batches_with_the_same_masks(name: str) -> None:
    from layerprobe.lab.pretraining.models import train_tokenizer

    tokenizer = train_tokenizer(TEXTS, vocab_size=60, max_length=32)
    seen: list[list[MaskedBatch]] = []
    for objective in ("mlm", name):
        _, run, _ = prepare(
            TEXTS, tokenizer, protocol_of(objective, steps=9), seed=3, device=torch.device("cpu"), autocast=None
        )
        assert run is not None
        batches: list[MaskedBatch] = []
        mask = run.masked_batch
        run.masked_batch = (  # type: ignore[method-assign]
            lambda rows, rng, mask=mask, batches=batches: batches.append(mask(rows, rng)) or batches[-1]
        )
        for _ in range(9):  # more than an epoch
            run.advance()
        seen.append(batches)
    assert len(seen[0]) == len(seen[1]) == 9
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first.ids, second.ids)
        assert torch.equal(first.selected, second.selected)


def test_the_loss_of_a_step_is_the_weighted_sum_of_its_means(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerprobe.lab.pretraining.models import train_tokenizer

    tokenizer = train_tokenizer(TEXTS, vocab_size=60, max_length=32)
    protocol = protocol_of("rtd", dropout=0.0, discriminator_weight=7.0, accumulation=2)
    _, run, _ = prepare(TEXTS, tokenizer, protocol, seed=0, device=torch.device("cpu"), autocast=None)
    assert run is not None
    batches: list[MaskedBatch] = []
    mask = run.masked_batch
    run.masked_batch = lambda rows, rng: batches.append(mask(rows, rng)) or batches[-1]  # type: ignore[method-assign]
    run.advance()  # the first step of the warm-up has rate 0: no weight moves
    rng = torch.Generator().manual_seed(0)
    outputs = [run.objective(batch, rng) for batch in batches]
    assert len(outputs) == 2
    masked = sum(len(batch.targets) for batch in batches)
    real = sum(batch.n_tokens for batch in batches)
    generator = sum(output["generator"]["loss"].item() for output in outputs) / masked
    discriminator = sum(output["discriminator"]["loss"].item() for output in outputs) / real
    assert run.last_loss == pytest.approx(generator + 7 * discriminator, rel=1e-5)


def test_bfloat16_is_autocast_over_float32_weights(made: Made, tmp_path: Path) -> None:
    found = job("all-tokens-mlm", tmp_path / "out", dtype="bfloat16", dropout=0.0)
    exact = job("all-tokens-mlm", tmp_path / "exact", dropout=0.0)
    assert (found.computed_on, exact.computed_on) == ("cpu bfloat16", "cpu float32")
    assert found.metrics != exact.metrics
    losses = [[each.held_out["mlm_loss"] for each in run.metrics] for run in (found, exact)]
    np.testing.assert_allclose(np.array(losses[0], float), np.array(losses[1], float), atol=0.1)
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.float32}


# ---- corpora ------------------------------------------------------------------------------------------


def test_the_language_is_as_long_as_the_run_and_has_no_unknown_words(tmp_path: Path) -> None:
    found = job("mlm", tmp_path / "out", texts="language", steps=4, batch_size=16, held_out=5)
    assert found.corpus == "language"
    assert found.n_held_out == 5
    assert 64 <= found.n_texts <= 72
    assert found.warnings == ()


@pytest.mark.parametrize("packed", [False, True])
def test_the_language_has_sentences_enough_to_hold_out(tmp_path: Path, packed: bool) -> None:
    found = job("mlm", tmp_path / "out", texts="language", steps=4, batch_size=16, held_out=50, packed=packed)
    assert found.n_held_out == 50
    assert found.n_texts > 0.9 * 4 * 16, "expected as many as the steps read"


def test_packed_sequences_are_longer(tmp_path: Path) -> None:
    plain, packed = (job("mlm", tmp_path / str(p), packed=p, batch_size=4, steps=4) for p in (False, True))
    assert packed.n_texts < plain.n_texts
    assert packed.n_tokens > 1.5 * plain.n_tokens


def test_few_texts_give_few_words(tmp_path: Path) -> None:
    found = job("mlm", tmp_path / "out", steps=1, vocab_size=5000)
    assert found.vocab_size < 5000
    assert f"the vocabulary has {found.vocab_size} words, not 5,000: the texts contain no more" in found.warnings
    assert "1 duplicate texts were removed" in found.warnings
    letters = job("mlm", tmp_path / "letters", steps=1, vocab_size=10)
    assert any("not 10: the texts have that many letters alone" in warning for warning in letters.warnings)


# ---- finished, in the way, refused ----------------------------------------------------------------------


def test_a_generator_larger_than_the_encoder_is_warned_of(tmp_path: Path) -> None:
    found = job("rtd", tmp_path / "out", steps=1, generator_size=1.5)
    assert any("the generator is larger than its encoder" in warning for warning in found.warnings)
    assert AutoModel.from_pretrained(tmp_path / "out" / "generator").config.hidden_size == 24
    assert not any("generator" in warning for warning in job("mlm", tmp_path / "m", generator_size=1.5).warnings)


def test_too_few_texts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least 8 sequences to train on, a full batch, got 7: .* --batch-size"):
        job("mlm", tmp_path / "out", texts=TEXTS[:8])
    with pytest.raises(DataError, match='a result of load_corpus, or "language", got the text'):
        job("mlm", tmp_path / "out", texts="captions.txt")
    with pytest.raises(DataError, match="expected dtype auto, float32 or bfloat16 to train in, got 'float16'"):
        job("mlm", tmp_path / "out", dtype="float16")
    assert list(tmp_path.iterdir()) == []


# ---- real sentences -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_captions_are_learnt(name: str, shared_data: Path, tmp_path: Path) -> None:
    texts = load_corpus([shared_data / "corpus" / "captions.en.txt.gz"]).texts[:20_000]
    size = dataclasses.replace(SIZE, n_blocks=4, hidden_size=64, heads=2, intermediate_size=256)
    found = job(name, tmp_path / "out", texts=texts, size=size, steps=300, learning_rate=1e-3, vocab_size=4000)
    part = "mlm" if name == "mlm" else "generator"
    first, last = (found.metrics[i].held_out[f"{part}_loss"] for i in (0, -1))
    assert first is not None
    assert last is not None
    assert last < first - 2
