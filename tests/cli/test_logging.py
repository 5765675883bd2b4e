"""What the library logs, on stderr, and what a stream that is not UTF-8 has of results."""

import io
import json
import logging

import pytest
import typer
from layerprobe_cli.main import main
from layerprobe_cli.output import log_to_stderr, print_json


def test_a_line_is_said_once_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        log_to_stderr(quiet=False)
        for n in (1, 2, 1):
            logging.getLogger("layerprobe.somewhere").warning("%d words are cut", n)
    assert capsys.readouterr().err == "warning: 1 words are cut\nwarning: 2 words are cut\n" * 2


def test_any_encoding_of_stdout_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="iso-8859-5"))
    monkeypatch.setattr("sys.argv", ["layerprobe", "--version"])
    with pytest.raises(SystemExit):
        main()
    typer.echo("71.5 ± 0.2")
    print_json({"model": "modèle"})
    version, sentence, *written = raw.getvalue().splitlines()
    assert (version.split()[0], sentence) == (b"layerprobe", rb"71.5 \xb1 0.2")
    assert json.loads(b"".join(written)) == {"model": "modèle"}
