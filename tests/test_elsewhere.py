"""Tests say the same wherever they are started; `make test-elsewhere` runs a tenth of them in four such places."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = (
    "tests/cli/test_start.py::test_before_a_command_begins",
    "tests/cli/test_stderr.py::test_a_name_commands_no_terminal",
)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are others there")
def test_a_background_job_of_a_service_that_wants_colours() -> None:
    elsewhere = {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "FORCE_COLOR": "1",
        "COLUMNS": "40",
        "TERM": "dumb",
        "LC_ALL": "C",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=Path(__file__).parents[1],
        env=os.environ | elsewhere,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
