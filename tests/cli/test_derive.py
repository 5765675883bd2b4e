"""Options are those of the library: their texts are found, and their defaults are those of the functions called."""

import re
from dataclasses import fields
from typing import Any

import pytest
import typer
from layerprobe_cli.derive import field_text
from layerprobe_cli.main import app, first_sentence

from layerprobe.finetuning.values import Protocol
from layerprobe.lab.pretraining.values import AdaptationProtocol, PretrainingProtocol
from layerprobe.profiling.values import ProfileSettings
from layerprobe.results.table import Column, Table
from layerprobe.results.terminal import fitted, wrapped

ROOT = typer.main.get_command(app)
CONTEXT = ROOT.make_context("layerprobe", [], resilient_parsing=True)


def command(*words: str) -> Any:
    group_or_command: Any = ROOT
    for word in words:
        group_or_command = group_or_command.get_command(CONTEXT, word)
    return group_or_command


@pytest.mark.parametrize(
    ("words", "kind", "other"),
    [
        (("finetune",), Protocol, {"learning_rate", "lora_modules", "max_length", "pooling"}),
        (("profile",), ProfileSettings, {"batch_sizes"}),
        (("lab", "adapt"), AdaptationProtocol, set()),
        (("lab", "pretrain"), PretrainingProtocol, {"size"}),
    ],
)
def test_an_option_has_the_default_and_the_text_of_its_field(
    words: tuple[str, ...], kind: type, other: set[str]
) -> None:
    params = {param.name: param for param in command(*words).get_params(CONTEXT)}
    derived = [field for field in fields(kind) if field.name in params and field.name not in other]
    assert len(derived) >= 5
    for field in derived:
        assert params[field.name].default == field.default, field.name
        assert params[field.name].help.endswith("."), field.name


def test_every_option_has_a_text_that_is_a_sentence() -> None:
    def commands(group: Any) -> list[Any]:
        members = [group.get_command(CONTEXT, name) for name in group.list_commands(CONTEXT)]
        return [inner for one in members for inner in (commands(one) if hasattr(one, "list_commands") else [one])]

    for one in commands(ROOT):
        for parameter in one.get_params(CONTEXT):
            text = getattr(parameter, "help", "") or ""
            assert parameter.hidden or text, (one.name, parameter.name)


def test_a_field_without_a_text_is_noticed() -> None:
    class Settings:
        nothing: int = 0

    with pytest.raises(LookupError, match="Settings does not document nothing"):
        field_text(Settings, "nothing")
    assert first_sentence("Such as 3.5 points. More.") == "Such as 3.5 points."


@pytest.mark.parametrize("width", [30, 40, 80])
def test_a_table_fits_and_no_word_is_broken(width: int) -> None:
    said = "ties with layer 3, which is smaller than all others"
    columns = (
        Column("layer", (0, 1)),
        *(Column(f"score {number}", (0.5, 0.25)) for number in range(6)),
        Column("remark", (said, "")),
    )
    text = fitted(
        Table(columns=columns, notes=("a note that is longer than what a narrow terminal has room for",)), width
    )
    assert max(map(len, text.splitlines())) <= width
    words = set(re.findall(r"[\w.]+", text))
    assert {*said.replace(",", "").split(), "0.25", *map(str, range(6))} <= words
    assert text.count("layer") >= (3 if width < 80 else 2)
    assert fitted(Table(columns=columns), None) == Table(columns=columns).text()


def test_a_command_that_is_wrapped_can_still_be_pasted() -> None:
    line = "  layerprobe export google/electra-base-discriminator electra-9 --layer 9"
    assert wrapped(line, 40).replace(" \\\n", " ").split() == line.split()
