"""The command line and Python have the same words, and a wrong value in Python is answered by a right one."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from layerprobe_cli.main import app

import layerprobe as lp
from layerprobe.comparison.compare import compare_all
from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.errors import ON_COMMAND_LINE, option
from layerprobe.probing.values import ProbeSettings
from layerprobe.shrinking.values import ShrinkSettings
from layerprobe.similarity.measures import CKA
from layerprobe.tasks.formats import Format

COMMANDS = ["find", "predict", "score", "compare", "probe", "finetune", "shrink", "export", "extract"]
FUNCTIONS = {"export": "export_model"}
SETTINGS = (lp.Model, lp.Protocol, lp.load_task, lp.load_texts, lp.settings, lp.save, ProbeSettings, Format)
SETTINGS = (*SETTINGS, ShrinkSettings, CKA, compare_all)
COMMAND_LINE = {
    "json quiet wide traceback help_all dry_run": "what is printed; an estimate is layerprobe.study.find.plan_find",
    "out parquet show_map": "where it is written: lp.save(result, path)",
    "fail_below fail_on_drop readings": "what is printed, or an exit code",
    "with_texts plotly": "of result.save_html(path)",
    "others data": "the first arguments",
    "file_format": "format of lp.load_task",
    "merge": "layerprobe.kinds.tokens.merged",
    "texts split": "the texts themselves: task.texts(split)",
    "reference_name reference_random_init rule reference": "reference=lp.Model(...), rule of lp.predict",
    "kernel bandwidth neighbours": "measure=CKA(kernel=..., bandwidth_multiplier=...), MutualKNN(neighbours=...)",
    "ranking relevant_from": "layerprobe.kinds.retrieval_loading.load_retrieval",
    "timed": "timing",
    "other_blocks": "blocks of lp.finetune, see layerprobe.shrinking.teacher.candidates",
    "target targets_are": "column and kind of lp.probe",
    "overwrite": "of lp.export_model",
}
"""Options that no function takes by that name, and where they are in Python."""
PYTHON = {
    "model task data embeddings": "arguments",
    "reference prediction": "likewise",
    "protocol settings": "settings, whose fields are options",
    "measure": "an option of compare alone, as rules are fitted to CKA",
    "start enough on_plan timing command dense made prompts groups": "for calls from code",
    "weights": "those of probe: its --out",
    "column": "--target",
    "cv random_state": "scikit-learn's words, of lp.probe: --folds and --seed",
}
"""Keywords that are no options."""


IN_PYTHON = {"keep_blocks": "blocks", "split_seed": "seed", "bandwidth": "bandwidth_multiplier"}
IN_PYTHON |= {"fine_tune": "fine_tuning", "report": "path", "measures": "measure"}
"""Options that a function takes by another name."""


def parameters(function: Any) -> set[str]:
    """Return the names of what a function takes."""
    return set(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_keywords_have_one_name(name: str) -> None:
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined, arg-type]
    options = {IN_PYTHON.get(str(option.name), str(option.name)) for option in command.params}
    keywords = parameters(getattr(lp, FUNCTIONS.get(name, name)))
    of_settings = {keyword for settings in SETTINGS for keyword in parameters(settings)}
    assert options - keywords - of_settings <= set(" ".join(COMMAND_LINE).split())
    assert keywords - options <= set(" ".join(PYTHON).split())


@pytest.fixture
def in_python() -> Iterator[None]:
    token = ON_COMMAND_LINE.set(False)
    yield
    ON_COMMAND_LINE.reset(token)


MODEL, TEXTS = str(embedded_model("rtd")), ["one text", "another text"]
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no labels": (lambda _: lp.load_task(TEXTS), "load_task({'text': texts, 'label': labels})"),
    "a measure": (lambda _: lp.compare(MODEL, MODEL, TEXTS, measure="procrustess"), "did you mean 'procrustes'?"),
    "a class": (lambda _: lp.compare(MODEL, MODEL, TEXTS, measure=CKA), "one of cka, mutual-knn"),  # type: ignore[call-overload]
    "save first": (lambda _: lp.save("a.json", lp.Protocol()), "save(finding, 'finding.json')"),  # type: ignore[arg-type]
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
