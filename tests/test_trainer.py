"""Every layer while the trainer of sentence-transformers trains, against its own evaluators on models that are cut."""

import csv
import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import layerprobe as lp
from layerprobe import trainer
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError, UnsupportedArchitectureError
from layerprobe.stats.crossed import crossed
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences, links_of
from layerprobe.tasks.values import Examples, Task
from layerprobe.trainer import LayerEvaluator, truncate
from tests.export.judges import sentence_transformer
from tests.export.test_sentence_transformers import SENTENCES, built, dense, mean, modules
from tests.few import few
from tests.models import N_BLOCKS, save_tiny, tiny_tokenizer
from tests.toy_task import LETTERS, TOY_KINDS, toy_pairs, toy_task_of

BY_TOKENS = ("entities", "tags")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Bars and reports of the libraries stay away, also where a test hears what is logged."""
    from transformers.utils import logging as of_transformers

    before = of_transformers.is_progress_bar_enabled()
    of_transformers.disable_progress_bar()
    yield
    if before:
        of_transformers.enable_progress_bar()


@pytest.fixture(scope="module")
def task() -> Task:
    """Pairs of texts of many lengths, no two of which have the same letters: no cosines are equal."""
    rng = random.Random(4)

    def pairs(n: int) -> Examples:
        texts = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) + " " + rng.choice(LETTERS) for _ in range(2 * n)]
        scores = tuple(len(set(a) & set(b)) + rng.random() for a, b in zip(texts[::2], texts[1::2], strict=True))
        return Examples(first=tuple(texts[::2]), second=tuple(texts[1::2]), targets=scores)

    return Task(name="pairs", kind="sts", train=pairs(8), validation=pairs(40), test=pairs(24))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a model by its name, written once."""
    return functools.cache(lambda name: LAYOUTS[name](tmp_path_factory.mktemp("source")))


@pytest.fixture
def model(source: Callable[[str], Path]) -> Any:
    return sentence_transformer(source("normalised"))


def theirs(examples: Examples, **options: Any) -> Any:
    """The evaluator of sentence-transformers on the same pairs."""
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    assert examples.second is not None
    first, second, scores = (list(each) for each in (examples.first, examples.second, examples.targets))
    return EmbeddingSimilarityEvaluator(first, second, scores, main_similarity="cosine", **options)


def examples(task: Task) -> Examples:
    return task.examples("validation")


# ---- a layer is the model cut there -------------------------------------------------------------------


LAYOUTS: dict[str, Any] = {
    "bert": lambda path: built(path, mean()),
    "normalised": lambda path: built(path, mean(), modules()["Normalize"]()),
    "modernbert, normalised": lambda path: built(path, mean(), modules()["Normalize"](), encoder="modernbert"),
    "llama, last token": lambda path: built(path, mean("lasttoken"), encoder="llama"),
    "qwen3, padded on the left": lambda path: built(
        path, mean("lasttoken"), encoder="qwen3", tokenizer=tiny_tokenizer(padding_side="left")
    ),
    "t5": lambda path: built(path, mean(), encoder="t5"),
    "albert, blocks that are one": lambda path: built(path, mean("max"), encoder="albert"),
    "deberta": lambda path: built(path, mean(), encoder="deberta-v3"),
    "two poolings, short": lambda path: built(path, mean(("weightedmean", "cls")), length=6),
    "a prompt that is not pooled": lambda path: built(
        path, mean(include_prompt=False), prompts={"query": "a b "}, default_prompt_name="query"
    ),
    "Dense": lambda path: built(path, mean(), dense(), modules()["Normalize"]()),
    "LayerNorm": lambda path: built(path, mean(), modules()["LayerNorm"](16)),
    "features cut off": lambda path: built(path, mean(), truncate_dim=7),
}
USUAL = ("bert", "llama, last token", "deberta", "two poolings, short", "a prompt that is not pooled", "Dense")


@pytest.mark.parametrize("name", few([name for name in LAYOUTS if name != "normalised"], USUAL.__contains__))
def test_a_layer_scores_what_the_model_cut_there_does(name: str, task: Task, source: Callable[[str], Path]) -> None:
    model = sentence_transformer(source(name))
    model.truncate_dim = 7 if name == "features cut off" else None
    found = LayerEvaluator(task, name="dev")(model)
    one_token = name.startswith(("llama", "qwen3"))  # which is the same in all texts before the first block
    for layer in range(1 if one_token or name.startswith(("modernbert", "deberta")) else 0, N_BLOCKS + 1):
        expected = theirs(examples(task))(truncate(model, layer))
        # their cosines are rounded to float32, which moves ranks less
        for metric, apart in (("spearman_cosine", 1e-6), ("pearson_cosine", 1e-5)):
            assert found[f"dev_layer_{layer}_{metric}"] == pytest.approx(expected[metric], abs=apart), (layer, metric)
    assert [key for key, value in found.items() if math.isnan(value)] == [
        f"dev_layer_0_{metric}_cosine" for metric in ("spearman", "pearson") if one_token
    ]


@pytest.mark.parametrize("name", few([name for name in LAYOUTS if name != "normalised"], USUAL.__contains__))
def test_a_truncated_model_encodes_what_its_export_does(
    name: str, source: Callable[[str], Path], tmp_path: Path
) -> None:
    model, layer = sentence_transformer(source(name)), 2
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = model.encode(SENTENCES)
    cut = truncate(model, layer)
    lp.export_model(model, tmp_path / "out", layer=layer)
    written = sentence_transformer(tmp_path / "out")
    assert [type(each) for each in cut] == [type(each) for each in written]
    assert (cut.prompts, cut.default_prompt_name) == (written.prompts, written.default_prompt_name)
    assert (cut.max_seq_length, cut.similarity_fn_name) == (written.max_seq_length, written.similarity_fn_name)
    for prompt in (None, *model.prompts):
        for size in (1, 8):
            found = cut.encode(SENTENCES, prompt_name=prompt, batch_size=size)
            of_export = written.encode(SENTENCES, prompt_name=prompt, batch_size=size)
            np.testing.assert_allclose(found, of_export, rtol=0, atol=1e-6)
    # the model is as it was, and shares nothing with what was cut off
    with torch.no_grad():
        for weight in cut.parameters():
            weight.zero_()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    np.testing.assert_array_equal(model.encode(SENTENCES), expected)


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm"])
def test_a_head_of_every_layer(
    kind: str, task: Task, source: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    model = sentence_transformer(source(kind))
    cut = truncate(model, 1)
    assert kind not in [type(each).__name__ for each in cut]
    assert f"layer 1 is cut without its {kind}, which was trained on the last layer" in caplog.text
    found = LayerEvaluator(task)(model)
    assert f"all layers but the last are scored without its {kind}, which was trained on the last layer" in caplog.text
    caplog.clear()
    kept = truncate(model, 1, heads="every")
    assert [type(each) for each in kept] == [type(each) for each in model]
    every = LayerEvaluator(task, heads="every")(model)
    assert not caplog.text
    expected = theirs(examples(task))(kept)["spearman_cosine"]
    assert every["layer_1_spearman_cosine"] == pytest.approx(expected, abs=1e-6)
    if kind == "Dense":
        assert abs(every["layer_1_spearman_cosine"] - found["layer_1_spearman_cosine"]) > 1e-3
    last = f"layer_{N_BLOCKS}_spearman_cosine"
    assert every[last] == found[last]


def test_adapters(task: Task, model: Any) -> None:
    from peft import LoraConfig

    plain = LayerEvaluator(task)(model)
    torch.manual_seed(0)
    model.add_adapter(LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False))
    found = LayerEvaluator(task)(model)
    assert found["layer_0_spearman_cosine"] == plain["layer_0_spearman_cosine"]
    assert found["layer_3_spearman_cosine"] != plain["layer_3_spearman_cosine"]
    expected = theirs(examples(task))(model)["spearman_cosine"]
    assert found["layer_3_spearman_cosine"] == pytest.approx(expected, abs=1e-6)
    assert any("lora" in name for name, _ in model.named_parameters())


def test_weights_in_bfloat16(task: Task, model: Any) -> None:
    model = model.bfloat16()
    found = LayerEvaluator(task, batch_size=1)(model)
    for layer in range(N_BLOCKS + 1):
        cut = truncate(model, layer)
        assert {weight.dtype for weight in cut.parameters()} == {torch.bfloat16}
        expected = theirs(examples(task), batch_size=1)(cut)["spearman_cosine"]
        # cosines of theirs are in bfloat16, too, in which many are equal
        assert found[f"layer_{layer}_spearman_cosine"] == pytest.approx(expected, abs=0.01)
    embedded = model.encode(SENTENCES, batch_size=1)
    np.testing.assert_array_equal(truncate(model, N_BLOCKS).encode(SENTENCES, batch_size=1), embedded)


def test_rotary_positions_stay_in_float32_where_weights_are_in_bfloat16(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = str(built(tmp_path, mean(), encoder="llama"))
    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    assert {each.dtype for each in model.buffers()} == {torch.float32}
    whole = truncate(model, N_BLOCKS)
    assert {each.dtype for each in whole.buffers()} == {torch.float32}
    np.testing.assert_array_equal(whole.encode(SENTENCES), model.encode(SENTENCES))


def test_frozen_weights_stay_frozen(model: Any) -> None:
    for name, weight in model.named_parameters():
        weight.requires_grad_("embeddings" not in name)
    frozen = {name for name, weight in truncate(model, 2).named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, weight in model.named_parameters() if not weight.requires_grad}


# ---- tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in TOY_KINDS if kind not in BY_TOKENS])
@pytest.mark.parametrize("split", few(["validation", "test"], lambda split: split == "test"))
def test_a_kind_scores_what_score_has(kind: str, split: Any, tmp_path: Path) -> None:
    task = toy_task_of(kind)
    folder = built(tmp_path, mean(), prompts={"query": "a ", "document": "c d "})
    expected = lp.score(Model(folder, cache_dir=tmp_path / "cache"), task, split=split)
    found = LayerEvaluator(task, split=split)(sentence_transformer(folder))
    way = "probe" if expected.first.method == "probe" else "cosine"
    metrics = expected.metrics
    if kind == "retrieval":  # of whole rankings, which a fine-tuned model is not scored by
        metrics = {name: scores for name, scores in metrics.items() if f"layer_0_{name}_{way}" in found}
        assert expected.primary in metrics
    for name, scores in metrics.items():
        values = [found[f"layer_{layer}_{name.replace(' ', '_')}_{way}"] for layer in range(N_BLOCKS + 1)]
        np.testing.assert_allclose(values, np.array(scores) / 100, rtol=0, atol=1e-6 if way == "cosine" else 1e-3)
    assert found["best_layer"] == expected.best_layer


@pytest.mark.parametrize("kind", BY_TOKENS)
def test_what_tokens_score_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match=f"expected a task scored by embeddings of texts, got one of kind {kind}"):
        LayerEvaluator(toy_task_of(kind))


def test_the_best_layer_has_its_interval(task: Task, model: Any) -> None:
    found = LayerEvaluator(task, name="dev")(model)
    scores = [found[f"dev_layer_{layer}_spearman_cosine"] for layer in range(N_BLOCKS + 1)]
    best = int(found["dev_best_layer"])
    assert found["dev_best_spearman_cosine"] == max(scores) == scores[best]
    assert found["dev_mean_spearman_cosine"] == pytest.approx(np.mean(scores), abs=1e-12)
    items = examples(task)
    u, v = (truncate(model, best).encode(list(side)) for side in items.sides)
    outputs = (u.astype(float) * v).sum(axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    influences = item_influences("sts", outputs, items.gold)[None]
    expected = crossed([100 * max(scores)], influences, links=links_of(items), metric="spearman", difference=False)
    assert expected is not None
    ends = [found[f"dev_best_spearman_cosine_{end}"] for end in ("low", "high")]
    np.testing.assert_allclose(ends, np.array(expected.interval) / 100, rtol=0, atol=1e-5)
    with lp.settings(level=0.5):
        narrow = LayerEvaluator(task)(model)
    assert ends[0] < narrow["best_spearman_cosine_low"] < narrow["best_spearman_cosine_high"] < ends[1]


def test_data_in_one_piece_are_scored_whole(task: Task, model: Any) -> None:
    whole = replace(task, one_piece=True)
    assert LayerEvaluator(whole).split == "all"
    expected = theirs(whole.examples("all"))(model)["spearman_cosine"]
    found = LayerEvaluator(whole)(model)[f"layer_{N_BLOCKS}_spearman_cosine"]
    assert found == pytest.approx(expected, abs=1e-6)


# ---- changes, groups and items ------------------------------------------------------------------------


def moved(model: Any, scale: float = 0.3) -> Any:
    """The model after noise on all weights, as after a step."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator))
    return model


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_change_is_that_of_paired_queries(tmp_path: Path) -> None:
    task = replace(toy_task_of("retrieval", validation=60), keep_overlaps=True)
    items: Any = task.validation
    items = items.take([*{query: row for row, query in enumerate(items.queries)}.values()])
    task, n = replace(task, validation=items), len(items)
    model = sentence_transformer(built(tmp_path, mean()))
    evaluator = LayerEvaluator(task, split="validation", name="dev", primary=2)
    by_hand, logged = [], []
    for step in (10, 20):
        logged.append(evaluator(model, str(tmp_path), 1, step))
        queries, documents = (truncate(model, 2).encode([*texts]) for texts in (items.queries, items.documents))
        cosines = queries @ documents.T / np.linalg.norm(documents, axis=1)
        right = cosines[range(n), [judged[0][0] for judged in items.relevance]]
        ranks = 1 + (cosines > right[:, None] + 1e-6).sum(axis=1)
        by_hand.append(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0))
        moved(model)
    assert not any("change" in name for name in logged[0])
    now = logged[1]
    difference = by_hand[1] - by_hand[0]
    reach = stats.t.ppf(0.975, n - 1) * difference.std(ddof=1) / math.sqrt(n)
    ends = difference.mean() - reach, difference.mean() + reach
    assert now["dev_change"] == pytest.approx(
        now["dev_layer_2_ndcg@10_cosine"] - logged[0]["dev_layer_2_ndcg@10_cosine"]
    )
    np.testing.assert_allclose([now["dev_change_low"], now["dev_change_high"]], ends, rtol=0, atol=1e-9)
    rows = rows_of(tmp_path / "layer_evaluation_dev_items.csv")
    assert [(row["steps"], row["item"]) for row in rows] == [(s, str(i)) for s in ("10", "20") for i in range(n)]
    np.testing.assert_allclose(
        [float(row["layer_2_ndcg@10_cosine"]) for row in rows], np.concatenate(by_hand), atol=1e-6
    )


@pytest.mark.parametrize(
    "kind", few([kind for kind in TOY_KINDS if kind not in BY_TOKENS], ("sts", "retrieval").__contains__)
)
def test_a_group_scores_what_its_items_alone_do(kind: str, tmp_path: Path) -> None:
    task, rows = replace(toy_task_of(kind), keep_overlaps=True), range(3, 29, 2)
    alone = replace(task, validation=task.validation.take(rows))
    groups = {"some": [*rows], "one": [5]}
    names = ["some" if row in rows else "rest" for row in range(32)]
    model = sentence_transformer(built(tmp_path, mean()))
    evaluators = [
        LayerEvaluator(scored_task, split="validation", primary=1, groups=of)
        for scored_task, of in ((task, groups), (task, names), (alone, ()))
    ]
    for _ in range(2):
        by_rows, by_names, expected = (evaluator(model) for evaluator in evaluators)
        moved(model)
    (title,) = (
        name.removeprefix("group_one_")
        for name in by_rows
        if name.startswith("group_one_") and name[-3:] not in ("low", "igh", "nge")
    )
    assert by_rows[f"group_some_{title}"] == pytest.approx(expected[f"layer_1_{title}"], abs=1e-9)
    assert expected["change_low"] < expected["change"] < expected["change_high"]
    for end in ("", "_low", "_high"):
        assert by_rows[f"group_some_change{end}"] == pytest.approx(expected[f"change{end}"], abs=1e-9)
        assert by_rows[f"group_some_{title}{end}"] == by_names[f"group_some_{title}{end}"]
    assert math.isnan(by_rows[f"group_one_{title}_low"])
    assert evaluators[0].items["groups"][3:6] == ["some", "", "some;one"]


def test_items_add_up_to_the_scores(task: Task, model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer, "MOST_ITEMS", 30)
    evaluator = LayerEvaluator(task, primary="mean", write_csv=False, groups=[("en", "de"), "en"] * 20)
    metrics = evaluator(model, str(tmp_path))
    for layer in range(N_BLOCKS + 1):
        name = f"layer_{layer}_spearman_cosine"
        assert np.mean(evaluator.items[name]) == pytest.approx(metrics[name], abs=1e-6)
        u, v = (truncate(model, layer).encode(list(side), normalize_embeddings=True) for side in examples(task).sides)
        np.testing.assert_allclose(evaluator.items[f"layer_{layer}_cosine"], (u * v).sum(axis=1), atol=2e-6)
    assert evaluator.items["groups"][:2] == ["('en', 'de')", "en"]
    again = evaluator(moved(model))
    gain = again["mean_spearman_cosine"] - metrics["mean_spearman_cosine"]
    assert again["change"] == pytest.approx(gain, abs=1e-12)
    assert again["change_low"] < gain < again["change_high"]
    assert [path.name for path in tmp_path.iterdir()] == ["layer_evaluation_items.csv"]
    assert len(rows_of(tmp_path / "layer_evaluation_items.csv")) == 30
    evaluator(truncate(model, 2))
    assert "change" not in evaluator(model)  # other layers than before


def test_a_change_is_as_certain_as_the_items_that_it_rests_on(task: Task, model: Any) -> None:
    """With no item changed, as one of them; with all changed a little, by Student's interval of these changes."""
    evaluator = LayerEvaluator(task, primary=2)
    evaluator(model)
    same, little = evaluator(model), evaluator(moved(model, 1e-3))
    of_one = stats.t.ppf(0.975, 39) / 40
    assert (same["change"], same["change_high"]) == (0, pytest.approx(of_one))
    assert 0 < little["change_high"] - little["change"] < of_one / 2


def test_intervals_are_those_of_the_metric_for_rare_classes(model: Any) -> None:
    """Macro F1; influences on accuracy would be 100 apart."""
    task, rare = toy_task_of("classification"), dict[str, Any]()
    for split in ("train", "validation", "test"):
        items = task.examples(split)  # type: ignore[arg-type]
        rare[split] = replace(items, targets=tuple(float(not {*text} & {*"abcdef"}) for text in items.first))
    evaluator = LayerEvaluator(replace(task, **rare), primary=1)
    metrics = evaluator(model)
    psi = 100 * (np.array(evaluator.items["layer_1_macro_f1_probe"]) - metrics["layer_1_macro_f1_probe"])
    assert np.ptp(psi) > 110


@pytest.mark.slow
@pytest.mark.parametrize("primary", ["best", "mean", 1])
@pytest.mark.parametrize("kind", ["sts", "retrieval"])
def test_intervals_hold_a_change_of_nothing(
    kind: str, primary: Any, task: Task, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of equal quality, before and after: what changes is luck."""
    rng, n, draws = np.random.default_rng(0), 40, 200
    task = task if kind == "sts" else toy_task_of(kind, validation=n)
    evaluator = LayerEvaluator(task, split="validation", primary=primary)

    def drawn(gold: Any, alike: Any) -> list[Any]:
        by_layer = alike + 0.7 * rng.standard_normal((3, n))
        with lp.settings(by_item=True, outputs=True):
            if kind == "sts":
                return [evaluate_outputs(kind, gold + values, gold) for values in by_layer]
            ranked = [
                [[*[9] * rank, 0, *[9] * 10][:10] for rank in np.exp(1 + values).astype(int)] for values in by_layer
            ]
            return [evaluate_outputs(kind, np.stack([ranks, ranks], axis=2), gold) for ranks in np.array(ranked, float)]

    covered = 0
    for _ in range(draws):
        alike, gold = rng.standard_normal((2, n))
        truth = gold if kind == "sts" else np.array([{0: 1.0}] * n)
        for _ in range(2):
            evaluations = drawn(truth, alike)
            monkeypatch.setattr(evaluator, "_evaluations", lambda *arguments, now=evaluations: now)
            metrics = evaluator(model)
        covered += metrics["change_low"] <= 0 <= metrics["change_high"]
    assert covered / draws >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 1.0])
def test_intervals_hold_a_change_of_few_queries(share: float) -> None:
    """Of 50 queries, a share changes by 0.1 on average; the true change is that times the share."""
    rng, n, draws, covered, by_student = np.random.default_rng(0), 50, 1000, 0, 0
    evaluator = LayerEvaluator(toy_task_of("sts", validation=n), split="validation")
    evaluator._parts[""] = ([*range(n)], None)
    reach = stats.t.ppf(0.975, n - 1) / math.sqrt(n)
    for _ in range(draws):
        changes = np.where(rng.random(n) < share, rng.normal(0.1, 0.2, n), 0)
        mean = changes.mean()
        metrics = evaluator._ends("change", 100 * mean, 100 * (changes - mean), "", difference=True)
        covered += metrics["change_low"] <= 0.1 * share <= metrics["change_high"]
        by_student += abs(mean - 0.1 * share) <= reach * changes.std(ddof=1)
    assert covered / draws >= 0.93
    assert (by_student / draws < 0.91) == (share <= 0.1)


# ---- in training --------------------------------------------------------------------------------------


def trained(folder: Path, model: Any, *, evaluator: Any, **options: Any) -> Any:
    """Train with the real trainer for six steps, three evaluations among them."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, CosineSimilarityLoss

    pairs = toy_pairs(24, 5)
    data = Dataset.from_dict({"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.targets})
    loss = AdaptiveLayerLoss(model, CosineSimilarityLoss(model), n_layers_per_step=-1)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        **options,
    )
    done = SentenceTransformerTrainer(model, args=arguments, train_dataset=data, loss=loss, evaluator=evaluator)
    done.train()
    return done


def with_dropout(source: Callable[[str], Path]) -> Any:
    model = sentence_transformer(source("normalised"))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    return model


def idle() -> Any:
    """An evaluator that does nothing: the trainer draws random numbers for any."""
    from sentence_transformers.base.evaluation import BaseEvaluator

    class Idle(BaseEvaluator):
        def __call__(self, *given: Any, **more: Any) -> float:
            return 0.0

    return Idle()  # type: ignore[no-untyped-call]


def test_training_with_the_evaluator_goes_as_without(task: Task, source: Callable[[str], Path], tmp_path: Path) -> None:
    ends = []
    for evaluator in (idle(), LayerEvaluator(task, name="dev")):
        model = with_dropout(source)
        start = {key: value.clone() for key, value in model.state_dict().items()}
        done = trained(tmp_path / "out", model, evaluator=evaluator)
        ends.append(model.state_dict())
    assert all(torch.equal(*pair) for pair in zip(*(end.values() for end in ends), strict=True))
    assert not all(torch.equal(ends[0][key], start[key]) for key in start)  # it did learn
    logged = [row for row in done.state.log_history if "eval_dev_best_layer" in row]
    assert [row["step"] for row in logged] == [2, 4, 6]
    for layer in range(N_BLOCKS + 1):
        expected = theirs(examples(task))(truncate(model, layer))["spearman_cosine"]
        assert logged[-1][f"eval_dev_layer_{layer}_spearman_cosine"] == pytest.approx(expected, abs=1e-6)
    rows = rows_of(tmp_path / "out" / "eval" / "layer_evaluation_dev_results.csv")
    assert [row["steps"] for row in rows] == ["2", "4", "6"]
    for name in ("best_layer", "layer_1_pearson_cosine", "best_spearman_cosine_low"):
        assert [float(row[name]) for row in rows] == [row[f"eval_dev_{name}"] for row in logged]
    assert [row["change_low"] for row in rows] == ["nan", *(str(row["eval_dev_change_low"]) for row in logged[1:])]
    card = model.model_card_data
    assert any("dev_best_spearman_cosine" in row for row in card.training_logs)


@pytest.mark.parametrize(
    ("primary", "expected"),
    [("best", "dev_best"), ("mean", "dev_mean"), (0, "dev_layer_0"), (np.int64(2), "dev_layer_2")],
)
def test_the_primary_metric(primary: Any, expected: str, task: Task, model: Any) -> None:
    evaluator = LayerEvaluator(task, name="dev", primary=primary)
    for _ in range(2):
        found = evaluator(model)
        assert evaluator.primary_metric in found
        assert evaluator.primary_metric == f"{expected}_spearman_cosine"


@pytest.mark.slow
def test_training_in_bfloat16(task: Task, source: Callable[[str], Path], tmp_path: Path) -> None:
    model = with_dropout(source)
    evaluator = LayerEvaluator(task, name="dev", batch_size=1)
    done = trained(tmp_path / "out", model, evaluator=evaluator, bf16=True)
    (*_, last) = (row for row in done.state.log_history if "eval_dev_best_layer" in row)
    exact = evaluator(truncate(model, N_BLOCKS))  # the same weights without the trainer's precision
    assert abs(exact["dev_layer_3_pearson_cosine"] - last["eval_dev_layer_3_pearson_cosine"]) > 1e-6
    for layer in range(N_BLOCKS + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cut = truncate(model, layer)
            expected = LayerEvaluator(task, batch_size=1)(cut)[f"layer_{layer}_spearman_cosine"]
        assert last[f"eval_dev_layer_{layer}_spearman_cosine"] == pytest.approx(expected, abs=1e-6)


# ---- left as it was -----------------------------------------------------------------------------------


def state_of(model: Any) -> list[Any]:
    """What an evaluation must leave alone."""
    hooks = [
        (len(module._forward_hooks), len(module._forward_pre_hooks), module.training, dict(vars(module)).get("forward"))
        for module in model.modules()
    ]
    random = [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]  # noqa: NPY002
    settings = [model.truncate_dim, model.device, torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()]
    weights = [(weight.data_ptr(), weight.requires_grad, weight.dtype) for weight in model.parameters()]
    config = model[0].auto_model.config.to_json_string()
    tokenizer = model.tokenizer.backend_tokenizer
    return [hooks, random, settings, weights, config, model.tokenizer.padding_side, str(tokenizer.padding)]


@pytest.mark.parametrize("encoder", ["bert", "llama"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(
    encoder: str, fails: bool, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sentence_transformer(built(tmp_path, mean(), modules()["Dropout"](0.3), encoder=encoder))
    model.truncate_dim = 9
    model.encode(SENTENCES)  # which sets the tokenizer's padding
    model.train()
    model[0].auto_model.get_submodule("encoder.layer.1" if encoder == "bert" else "layers.1").eval()
    next(model.parameters()).requires_grad_(False)
    evaluator, before = LayerEvaluator(task), state_of(model)
    if fails:
        monkeypatch.setattr(trainer, "outputs_of_layer", lambda *given: 1 / 0)
    for _ in range(2):
        if fails:
            with pytest.raises(ZeroDivisionError):
                evaluator(model)
        else:
            evaluator(model)
        assert state_of(model) == before
    truncate(model, 2)
    assert state_of(model) == before


def test_a_text_goes_through_the_model_once_and_layers_are_checked_once(
    task: Task, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    seen: list[int] = []
    look = trainer.look

    def counted(*given: Any, **options: Any) -> str:
        looks.append(1)
        return look(*given, **options)

    monkeypatch.setattr(trainer, "look", counted)
    evaluator = LayerEvaluator(task)
    evaluator(model)
    hook = model[0].auto_model.encoder.layer[0].register_forward_hook(lambda *given: seen.append(len(given[2])))
    evaluator(model)
    hook.remove()
    assert sum(seen) == len(examples(task).texts)
    assert len(looks) == 1
    evaluator(truncate(model, 2))  # another model is looked at again
    assert len(looks) == 3  # and truncate did


def test_no_layer_is_believed(task: Task, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "look", lambda encoder: "it only looks so")
    for call in (LayerEvaluator(task), lambda model: truncate(model, 1)):
        with pytest.raises(UnsupportedArchitectureError, match="it only looks so"):
            call(model)


# ---- layers that cannot be scored ---------------------------------------------------------------------


def test_a_model_that_has_diverged_does_not_end_its_training(
    task: Task, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = LayerEvaluator(task, name="dev")
    evaluator(model)
    with torch.no_grad():
        model[0].auto_model.encoder.layer[1].output.dense.weight.fill_(torch.nan)
    found = evaluator(model)
    assert [math.isnan(found[f"dev_layer_{layer}_spearman_cosine"]) for layer in range(4)] == [False, False, True, True]
    assert found["dev_best_layer"] < 2
    with torch.no_grad():
        model[0].auto_model.embeddings.word_embeddings.weight.fill_(torch.nan)
    found = evaluator(model)
    assert all(math.isnan(value) for value in found.values())
    assert evaluator.primary_metric in found
    assert sum("cannot be scored" in line for line in caplog.messages) == 4


def test_a_file_of_other_columns_is_left_alone(
    task: Task, model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = LayerEvaluator(task)
    evaluator(model, str(tmp_path / "eval"), 0.5, 3)
    file = tmp_path / "eval" / "layer_evaluation_results.csv"
    before = file.read_text()
    evaluator(truncate(model, 1), str(tmp_path / "eval"), 0.5, 4)
    assert "has other columns, perhaps from another model: no row was added" in caplog.text
    assert file.read_text() == before
    assert len(before.splitlines()) == 2
    (tmp_path / "eval" / "layer_evaluation_items.csv").unlink()
    LayerEvaluator(task, name="none", write_csv=False, write_items=False)(model, str(tmp_path / "eval"))
    assert [path.name for path in file.parent.iterdir()] == [file.name]


# ---- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "dev"}, "split is 'dev', expected one of 'all', 'train'"),
        ({"primary": "bset"}, "primary is 'bset', expected one of 'best', 'mean'"),
        ({"primary": 1.0}, "expected layers as whole numbers"),
        ({"heads": "all"}, "heads is 'all', expected one of 'last', 'every'"),
        ({"truncate_dim": 0}, "expected truncate_dim as a whole number from 1, got 0"),
        ({"groups": ["a", "b"]}, "expected a group for each of the 40 pairs of validation, got 2"),
        ({"groups": 3}, "expected a group for each of the 40 pairs of validation, got 1"),
        ({"groups": ["a", None] * 20}, "expected a group for every row, got None in row 1"),
        ({"groups": {"late": [1, 40]}}, "expected distinct rows from 0 to 39 in group 'late', got \\[1, 40\\]"),
        ({"groups": {"twice": [1, 1]}}, "expected distinct rows from 0 to 39 in group 'twice'"),
        ({"groups": {"none": ()}}, "expected distinct rows from 0 to 39 in group 'none'"),
    ],
)
def test_wrong_options(options: Any, words: str, task: Task) -> None:
    with pytest.raises(DataError, match=words):
        LayerEvaluator(task, **options)


def test_wrong_tasks() -> None:
    for split in ("train", "all"):
        with pytest.raises(DataError, match=f"\\(a probe is fitted on train\\), got {split}"):
            LayerEvaluator(toy_task_of("classification"), split=split)  # type: ignore[arg-type]


def test_layer_0_of_a_model_that_does_not_run_without_a_block(task: Task, tmp_path: Path) -> None:
    model = sentence_transformer(built(tmp_path, mean(), encoder="modernbert"))
    with pytest.raises(UnsupportedArchitectureError, match="does not run without a block, so layer 0 cannot be saved"):
        truncate(model, 0)
    assert LayerEvaluator(task)(model)["layer_0_spearman_cosine"] > 0


def test_models_that_are_none(task: Task, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    static = modules()["StaticEmbedding"](tiny_tokenizer().backend_tokenizer, embedding_dim=4)
    words = "expected a SentenceTransformer whose first module is a model of transformers"
    cross = CrossEncoder(str(save_tiny("bert", tmp_path)), num_labels=1, device="cpu")
    others = (torch.nn.Linear(2, 2), 3, "all-MiniLM-L6-v2")
    for model in (SentenceTransformer(modules=[static], device="cpu"), cross, *others):
        for call in (LayerEvaluator(task), lambda model: truncate(model, 1)):
            with pytest.raises(ModelError, match=f"{words}.* got a {type(model).__name__}"):
                call(model)
