"""What the library logs, on stderr."""

from __future__ import annotations

import logging

import pytest
from layerprobe_cli.output import log_to_stderr


def test_a_line_is_said_once_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("layerprobe")
    kept = logger.handlers[:], logger.level, logger.propagate
    try:
        for _ in range(2):
            log_to_stderr(quiet=False)
            for n in (1, 2, 1):
                logging.getLogger("layerprobe.somewhere").warning("%d words are cut", n)
    finally:
        logger.handlers[:], logger.propagate = kept[0], kept[2]
        logger.setLevel(kept[1])
    assert capsys.readouterr().err == "warning: 1 words are cut\nwarning: 2 words are cut\n" * 2
