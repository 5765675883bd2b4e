"""The experiments of the paper: its figures, the recipes, and what is run next to them."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.lab.recipe import load_recipe
from layerprobe.lab.reproduction import (
    FILES,
    PAPER,
    RECIPES,
    PaperScores,
    ReproducedScore,
    Reproduction,
    experiment,
    experiments,
    millions,
    notes_on,
    paper_models,
    plan_experiment,
    reproduce,
    reproduced_score,
    run_models,
)
from layerprobe.stats.values import seed_scores
from layerprobe.tasks.values import TaskSettings
from tests.cli.conftest import Layerprobe
from tests.models import save_tiny
from tests.results.contract import assert_keeps_contract

ELECTRA = "google/electra-base-discriminator"
BERT = "google-bert/bert-base-cased"
KO_ELECTRA = "monologg/koelectra-base-v3-discriminator"
KLUE = "klue/bert-base"


def figures() -> dict[str, Any]:
    file = Path(__file__).parents[3] / "shared" / "reference" / "paper_2402_13130.json"
    if not file.is_file():
        pytest.skip(f"the paper's figures are not at {file}")
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def test_the_figures_are_those_that_were_checked() -> None:
    # the tests below compare them with a transcript of the paper, where there is one: change this only after that
    figures = json.loads((PAPER / "paper.json").read_text(encoding="utf-8"))
    canonical = json.dumps(figures, sort_keys=True, separators=(",", ":"))
    assert (
        hashlib.sha256(canonical.encode()).hexdigest()
        == "3007525a0af24e389be63f9226744b5fd22d7846002b1b9405d2cc538490e0ea"
    )


def test_table_2_is_the_paper_s() -> None:
    rows = figures()["table_2_stsb"]["rows"]
    ours = [
        [
            score.model,
            score.layer,
            millions(score.model, score.layer),
            *score.validation.values(),
            *score.test.values(),
        ]
        for score in experiment("table2").scores
    ]
    assert ours == [row[1:] for row in rows]


def test_mrpc_sick_and_the_best_layer_are_the_paper_s() -> None:
    others = figures()["other_figures"]
    names = ("mrpc", "sick", "figure2a")
    test = {(name, s.model, s.layer): dict(s.test) for name in names for s in experiment(name).scores}
    electra, generator = "google/electra-base-discriminator", "google/electra-base-generator"
    mrpc, sick = others["mrpc F1"], others["sick macro F1"]["ELECTRA generator base"]
    expected = {
        ("mrpc", electra, 9): {"f1": mrpc["ELECTRA discriminator base"]["layer 9"]},
        ("mrpc", electra, 12): {"f1": mrpc["ELECTRA discriminator base"]["last"]},
        ("mrpc", "microsoft/deberta-v3-base", 10): {"f1": mrpc["DeBERTaV3 base"]["layer 10"]},
        ("mrpc", "microsoft/deberta-v3-base", 12): {"f1": mrpc["DeBERTaV3 base"]["last"]},
        ("sick", generator, 11): {"macro f1": sick["layer 11"]},
        ("sick", generator, 12): {"macro f1": sick["last"]},
        ("figure2a", electra, 9): {"spearman": others["stsb ELECTRA discriminator best test layer"]["base"][1]},
    }
    assert {key: test[key] for key in expected} == expected


def test_table_1_and_the_languages_are_the_paper_s() -> None:
    result, columns = figures(), {"tmft": None, "word_similarity_then_tmft": "word similarity"}
    columns["dapt_then_tmft"] = "domain adaptation"
    names = {hub_id: model["name"] for hub_id, model in paper_models().items()}
    ours = {
        (s.before, names[s.model]): [s.layer, millions(s.model, s.layer), s.test["spearman"]]
        for s in experiment("table1").scores
    }
    expected = {
        (before, name): [int(str(layer).rstrip("*")), pytest.approx(parameters, abs=0.01), score]
        for column, before in columns.items()
        for name, (layer, parameters, score) in result["table_1_stsb"][column].items()
    }
    assert ours == expected
    for language in ("ko", "de", "es"):
        flat = [
            score
            for value in result["other_figures"][f"stsb {language}"].values()
            for score in (value.values() if isinstance(value, dict) else (value,))
        ]
        assert sorted(s.test["spearman"] for s in experiment(language).scores) == sorted(flat)


def test_the_scores_beside_cka_are_the_paper_s() -> None:
    best = figures()["other_figures"]["stsb ELECTRA discriminator best test layer"]
    last = {(row[1], row[2]): row[6] for row in figures()["table_2_stsb"]["rows"]}
    for pair in experiment("figure3").pairs:
        assert pair.last == last[pair.model, pair.last_layer]
        size = pair.model.split("-")[1]
        if "discriminator" in pair.model:
            assert [pair.best_layer, pair.best] == best[size]
        else:
            assert (pair.best_layer, pair.best) == (pair.last_layer, pair.last)


def test_what_was_chosen_here_is_reported() -> None:
    named = {row[1] for row in figures()["table_2_stsb"]["rows"]}
    assert {hub_id for hub_id, model in paper_models().items() if "chosen" not in model} == named
    planned = run_models(experiment("ko"), {KLUE: KLUE, KO_ELECTRA: "folder"})
    chosen, replaced = [note for note in notes_on(experiment("ko"), planned) if "electra" in note or "klue" in note]
    assert chosen.startswith(f"{KLUE} is our choice")
    assert replaced == f"folder was run instead of {KO_ELECTRA}"


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_has_its_recipes(name: str) -> None:
    chosen = experiment(name)
    planned = plan_experiment(chosen, run_models(chosen), seeds=(0, 1, 2, 3, 4), data={})
    assert {job["model"].partition(" (")[0] for job in planned.jobs} == set(chosen.models)
    assert {f"note: {note}" for note in planned["notes"]} <= set(planned.details)
    asked = {(s.before, s.model, s.random_init, s.layer) for s in chosen.scores}
    recipes = {before: RECIPES / f"{name}{suffix}.toml" for before, suffix in FILES.items()}
    read = {before: load_recipe(file) for before, file in recipes.items() if file.is_file()}
    assert asked == {
        (before, model.model.name, model.model.random_init, layer)
        for before, recipe in read.items()
        for model in recipe.models
        if model.model is not None
        for layer in recipe.model_layers(model) or ()
    }


def test_a_chain_without_data_is_not_run(layerprobe: Layerprobe, words: Path, corpus: Path) -> None:
    arguments = ("lab", "reproduce", "table1", "--dry-run", "--models", BERT)
    assert [layer["runs"] for layer in layerprobe(*arguments, "--json").json["jobs"]] == [5, 0, 0]
    both = layerprobe(*arguments, "--words", words, "--corpus", corpus, "--json").json
    assert [layer["runs"] for layer in both["jobs"]] == [5, 10, 5]
    given = layerprobe(*arguments, "--words", words).out
    assert "--words FOLDER" not in given
    assert "Not run: domain adaptation, then TMFT; add the data with --corpus FILE." in given


def reproduced(test: tuple[float, ...], paper: float | None) -> ReproducedScore:
    ours = LayerOutcome(
        layer=3,
        parameters=10,
        seeds=tuple(range(len(test))),
        primary="spearman",
        test={"spearman": test},
        validation={"spearman": tuple(reversed(test))},
    )
    figures = PaperScores(model=ELECTRA, layer=3, validation={}, test={} if paper is None else {"spearman": paper})
    return reproduced_score(figures, ELECTRA, ours, "test", "spearman")


def test_a_difference_is_judged_by_the_deviation_of_our_seeds() -> None:
    near, far = reproduced((74.0, 75.0, 76.0), 76.9), reproduced((74.0, 75.0, 76.0), 77.1)
    assert (far["ours"].mean, far["ours"].std, far["deviations"]) == (75.0, 1.0, pytest.approx(-2.1))
    both = reproduction(near, far)
    assert_keeps_contract(both, is_read=False)
    assert (both.facts["right"].value, both.facts["all"].value) == (1, 2)
    assert both.facts["difference"].value == pytest.approx(-2.1)
    assert (both.conclusion.names["model"], both.conclusion.names["layer"]) == (ELECTRA, 3)
    verdicts = [reproduction(*scores).verdict for scores in ((near,), (near, far), (near, far, far))]
    assert verdicts == ["decided", "undecided", "failed"]


def reproduction(*scores: ReproducedScore) -> Reproduction:
    about: dict[str, Any] = {"experiment": "table2", "source": "Table 2", "task": "stsb", "notes": (), "level": 0.95}
    return Reproduction(primary="spearman", scores=scores, pairs=(), front={}, **about)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(save_tiny("electra", tmp_path / "model", num_hidden_layers=12))


def test_table_1_runs_tmft_alone_and_names_the_rest(layerprobe: Layerprobe, pairs_file: Path, tiny: str) -> None:
    arguments = ("lab", "reproduce", "table1", "-t", pairs_file, "--seeds", "1", "--models", f"{ELECTRA}={tiny}")
    done = layerprobe(*arguments, "--json").json
    test = [score for score in done["scores"] if score["split"] == "test"]
    assert [(score["before"], score["layer"], score["paper"], score["ours"] is None) for score in test] == [
        (None, 3, 75.29, False),
        ("word similarity", 3, 76.71, True),
        ("domain adaptation", 7, 79.9, True),
    ]
    shown = layerprobe(*arguments)
    text = " ".join(shown.out.split())
    assert "Not run: word similarity before fine-tuning; give its data with --words FOLDER" in text
    assert "Not run: domain adaptation before fine-tuning; give its data with --corpus FILE" in text
    assert any(line.endswith(" 76.71") for line in shown.out.splitlines()), "a row without a score of ours"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    folder.mkdir()
    lines = [f"{first},{second},{number % 11}" for number, (first, second) in enumerate(WORDS)]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{first} {second} and {first}.\n" for first, second in WORDS))
    return path


WORDS = list(itertools.combinations(("cab", "bead", "fade", "cage", "face", "head", "bad", "edge"), 2))


@pytest.mark.slow
def test_table_1_runs_its_chains_by_the_protocols_of_the_paper(
    layerprobe: Layerprobe, pairs_file: Path, tiny: str, words: Path, corpus: Path, tmp_path: Path
) -> None:
    arguments = ("lab", "reproduce", "table1", "-t", pairs_file, "--seeds", "2", "--models", f"{ELECTRA}={tiny}")
    scores = layerprobe(*arguments, "--words", words, "--corpus", corpus, "--json").json["scores"]
    _, after_words, _ = test = [score for score in scores if score["split"] == "test"]
    assert [(score["before"], score["layer"], score["paper"]) for score in test] == [
        (None, 3, 75.29),
        ("word similarity", 3, 76.71),
        ("domain adaptation", 7, 79.9),
    ]
    assert all(len(score["ours"]["values"]) == 2 for score in scores)
    # runs of their own: each chain fine-tunes what its first step left
    protocols = [
        json.loads(file.read_text())["runs"][0]["protocol"] for file in (tmp_path / "cache").rglob("result.json")
    ]
    assert sorted((how["epochs"], how["batch_size"]) for how in protocols) == [(10, 32)] * 6 + [(50, 128)] * 2
    (adaptation,) = (tmp_path / "cache").rglob("adaptation.json")
    how = json.loads(adaptation.read_text())["protocol"]
    assert (how["epochs"], how["masking_rate"]) == (10, 0.15)

    # only one of them, and nothing is done again
    printed = layerprobe(*arguments, "--words", words, "--wide")
    figures = [f"{after_words['paper']:.2f}", f"{after_words['ours']['mean']:.2f}"]
    assert " ".join(figures) in " ".join(printed.out.split())
    assert "give its data with --corpus FILE" in printed.out
    assert "--words FOLDER" not in printed.out


@pytest.mark.slow
def test_the_front_is_that_of_what_was_run(layerprobe: Layerprobe, pairs_file: Path, tiny: str, tmp_path: Path) -> None:
    small = save_tiny("bert", tmp_path / "small", num_hidden_layers=2)
    models = f"{ELECTRA}={tiny},google/bert_uncased_L-2_H-128_A-2={small}"
    arguments = ("lab", "reproduce", "pareto", "-t", pairs_file, "--seeds", "1", "--models", models)
    front = layerprobe(*arguments, "--json").json["front"]
    assert front["paper"] == [["google/bert_uncased_L-2_H-128_A-2", 2], [ELECTRA, 3]]
    assert front["ours"]
    text = " ".join(layerprobe(*arguments).out.split())
    assert "Pareto front, the paper: google/bert_uncased_L-2_H-128_A-2 at layer 2" in text


def test_figure_3_compares_curves_with_the_paper_s_scores(
    layerprobe: Layerprobe, pairs_file: Path, tiny: str, tmp_path: Path
) -> None:
    reference = save_tiny("bert", tmp_path / "reference", num_hidden_layers=12, seed=3)
    models = f"{ELECTRA}={tiny},{BERT}={reference}"
    arguments = ("lab", "reproduce", "figure3", "-t", pairs_file, "--models", models)
    done = layerprobe(*arguments, "--json").json
    (pair,) = done["pairs"]
    assert len(pair["curve"]) == len(pair["biased"]) == 13
    assert all(
        low <= value <= high for low, value, high in zip(pair["lower"], pair["curve"], pair["upper"], strict=True)
    )
    text = layerprobe(*arguments).out
    assert text.startswith(f"The claim holds for {int(bool(pair['drop_layers']))} of 1 pair")
    assert "78.14" in layerprobe(*arguments, "--wide").out


@pytest.mark.slow
def test_intervals_have_the_level_that_is_asked_for(pairs_file: Path, tiny: str, tmp_path: Path) -> None:
    reference = str(save_tiny("bert", tmp_path / "reference", num_hidden_layers=12, seed=3))
    task, options = TaskSettings(source=str(pairs_file)), Model(device="cpu", cache_dir=tmp_path / "cache")
    done = reproduce("figure3", task, models={ELECTRA: tiny, BERT: reference}, seeds=(0,), options=options)
    with settings(level=0.8):
        narrow = reproduce("figure3", task, models={ELECTRA: tiny, BERT: reference}, seeds=(0,), options=options)
        score = reproduced((74.0, 75.0, 76.0), 76.9)
    assert (done.level, narrow.level) == (0.95, 0.8)
    assert narrow.pairs[0].upper[3] < done.pairs[0].upper[3]
    assert score["ours"] == seed_scores((74.0, 75.0, 76.0), 0.8, metric="spearman")
    for each in (narrow, dataclasses.replace(narrow, pairs=(), scores=(score,))):
        assert [column.title for column in each.table.columns if column.interval] == ["80 % interval"]
        assert_keeps_contract(each, is_read=False, long_names=True)
    assert from_json(Reproduction, to_json(done)) == done
