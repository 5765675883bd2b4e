"""The command line and Python have the same words, and a wrong call in Python is answered by the right one."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from layerprobe_cli.main import app

import layerprobe as lp
from layerprobe.checks import HOMES, OPTIONS, _parameters
from layerprobe.comparison.compare import compare_all
from layerprobe.embedded.pair import embedded_model, embedded_task
from layerprobe.errors import ON_COMMAND_LINE, CallError, option
from layerprobe.probing.values import ProbeSettings
from layerprobe.shrinking.values import ShrinkSettings
from layerprobe.similarity.measures.cka import RBFCKA
from layerprobe.tasks.formats import Format

COMMANDS = ["find", "predict", "score", "compare", "probe", "finetune", "shrink", "run", "confirm", "export", "extract"]
FUNCTIONS = {"export": "export_model"}
SETTINGS = (lp.Model, lp.Protocol, lp.load_task, lp.load_texts, lp.settings, lp.write_report, ProbeSettings, Format)
SETTINGS = (*SETTINGS, ShrinkSettings, RBFCKA, compare_all)
COMMAND_LINE = {
    "json quiet traceback help_all dry_run": "what is printed; an estimate is layerprobe.study.find.plan_find",
    "out parquet show_map mteb": "where it is written: lp.save(result, path)",
    "fail_below fail_on_drop": "an exit code",
    "with_texts": "texts of lp.write_report(result, path)",
    "others": "a list of models, or a call each",
    "file_format": "format of lp.load_task",
    "merge": "layerprobe.kinds.tokens.kind.merged",
    "texts split": "the texts themselves: task.texts(split)",
    "reference_name reference_random_init rule reference": "reference=lp.Model(...); confirm takes a prediction",
    "kernel bandwidth neighbours": "measure=CKA(), RBFCKA(bandwidth_multiplier=...), MutualKNN(neighbours=...)",
    "scan weighting ray workers": "lp.scan",
    "ranking relevant_from": "layerprobe.kinds.retrieval.loading.load_retrieval",
    "timed": "timing",
    "other_blocks": "layerprobe.shrinking.equal.equal_size",
    "target targets_are": "column and kind of lp.probe",
    "overwrite": "of lp.export_model",
    "public commit_message": "push_to_hub=Push(...)",
}
"""Options that no function takes by that name, and where they are in Python."""
PYTHON = {
    "model task data embeddings": "arguments",
    "reference prediction": "likewise",
    "protocol settings": "settings, whose fields are options",
    "measure": "an option of compare alone, as rules are fitted to CKA",
    "start enough on_plan timing command finetune_command dense made documents": "for calls from code",
    "column": "--target",
}
"""Keywords that are no options."""


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_keywords_have_one_name(name: str) -> None:
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined, arg-type]
    options = {OPTIONS.get(str(option.name), str(option.name)) for option in command.params}
    keywords = set(_parameters(getattr(lp, FUNCTIONS.get(name, name))))
    of_settings = {keyword for settings in SETTINGS for keyword in _parameters(settings)}
    assert options - keywords - of_settings <= set(" ".join(COMMAND_LINE).split())
    assert keywords - options <= set(" ".join(PYTHON).split())


@pytest.fixture
def in_python() -> Iterator[None]:
    token = ON_COMMAND_LINE.set(False)
    yield
    ON_COMMAND_LINE.reset(token)


MODEL, TEXTS = str(embedded_model("rtd")), ["one text", "another text"]
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a setting of the model": (lambda _: lp.extract(MODEL, TEXTS, pooling="cls"), "lp.Model(name, pooling=...)"),  # type: ignore[call-arg]
    "of fine-tuning": (lambda task: lp.find(MODEL, task, epochs=1), "protocol=lp.Protocol(epochs=...)"),  # type: ignore[call-overload]
    "of the data": (lambda task: lp.score(MODEL, task, columns="a,b"), "lp.load_task(source, columns=...)"),  # type: ignore[call-arg]
    "of another function": (lambda _: lp.Protocol(budget=0.1), "lp.find(model, task, budget=...) takes it"),  # type: ignore[call-arg]
    "of all calls": (lambda task: lp.predict(MODEL, task, level=0.9), "lp.settings(level=...)"),  # type: ignore[call-arg]
    "the option's name": (lambda _: lp.Model(MODEL, keep_blocks=3), "it is blocks= in Python"),  # type: ignore[call-arg]
    "misspelt": (lambda task: lp.find(MODEL, task, tolerence=1), "did you mean 'tolerance'?"),  # type: ignore[call-overload]
    "nothing known": (lambda task: lp.find(MODEL, task, banana=1), "find takes no 'banana'"),  # type: ignore[call-overload]
    "too few": (lambda _: lp.find(MODEL), "it is find(model, task, ...)"),  # type: ignore[call-overload]
    "task first": (lambda task: lp.find(task, MODEL), "takes the model first: find(model, task, ...)"),  # type: ignore[call-overload]
    "texts first": (lambda _: lp.extract(TEXTS, MODEL), "takes the model first: extract(model, texts, ...)"),  # type: ignore[arg-type]
    "probe": (lambda task: lp.probe(task, MODEL), "takes the model first: probe(embeddings, targets, ...)"),
    "lists": (lambda _: lp.load_task((["a", "b", "c", "d"], [1, 2, 3, 4])), "load_task({'text': ..., 'label': ...})"),
    "no labels": (lambda _: lp.load_task(TEXTS), "load_task({'text': texts, 'label': labels})"),
    "a measure": (lambda _: lp.compare(MODEL, MODEL, TEXTS, measure="rsaa"), "did you mean 'rsa'?"),
    "a class": (lambda _: lp.compare(MODEL, MODEL, TEXTS, measure=RBFCKA), "one of cka, mutual-knn"),  # type: ignore[call-overload]
    "save first": (lambda _: lp.save("a.json", lp.Protocol()), "save(finding, 'finding.json')"),  # type: ignore[arg-type]
    "what is it": (lambda _: lp.from_json('{"epochs": 3}'), "got epochs: give the type too"),
    "no such file": (lambda _: lp.load("nothing.json"), "cannot read nothing.json"),
    "an option": (lambda _: lp.load_task([{"query": "a", "positive": "b"}]), "choose kind='retrieval'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_leads_to_the_right_one(name: str, in_python: None) -> None:
    call, answer = CALLS[name]
    with pytest.raises(lp.LayerProbeError) as caught:
        call(embedded_task(train=16, validation=8, test=8))
    assert answer in str(caught.value)
    assert "--" not in str(caught.value)


def test_an_error_of_the_function_itself_stays() -> None:
    with pytest.raises(TypeError, match="unhashable") as caught:
        lp.Model(MODEL, dtype={}.fromkeys([[]]))  # type: ignore[arg-type]
    assert not isinstance(caught.value, CallError)


def test_homes_are_there_and_help_opens_with_names() -> None:
    assert all(_parameters(pkgutil.resolve_name(place)) for place in HOMES)
    opening = "(model: ModelLike | list[Any], task: Task, *, tolerance: float = 0.5"
    assert str(inspect.signature(lp.find)).startswith(opening)


def test_a_result_is_saved_and_loaded_without_its_type(tmp_path: Path) -> None:
    scores = lp.score(MODEL, embedded_task(train=16, validation=8, test=8))
    assert lp.load(lp.save(scores, tmp_path / "new" / "scores.json")) == lp.from_json(scores.to_json()) == scores
    assert lp.save(scores, tmp_path / "scores.csv").read_text() == scores.table.csv()
    assert "</html>" in lp.save(scores, tmp_path / "scores.html").read_text()
    with pytest.raises(lp.LayerProbeError, match=r"ends in \.json, \.html"):
        lp.save(scores, tmp_path / "scores.txt")


def test_messages_name_arguments_as_they_are_given(in_python: None) -> None:
    def named() -> str:
        given = option("cache_dir"), option("keep_blocks"), option("overwrite", True), option("scan", False)
        return "; ".join([*given, option("kind", "image classification", columns="a,b")])

    assert named() == (
        "cache_dir=...; blocks=...; overwrite=True; scan=False; kind='image classification', columns='a,b'"
    )
    ON_COMMAND_LINE.set(True)
    assert (
        named() == "--cache-dir; --keep-blocks; --overwrite; --no-scan; --kind 'image classification' --columns 'a,b'"
    )
