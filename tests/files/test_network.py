"""A Hub that answers badly, and addresses with a password."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

from layerprobe.encoders import loading
from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.loading import one_line_errors
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError


@pytest.mark.parametrize("downloaded", [True, False])
def test_what_was_downloaded_is_used_where_the_hub_answers_badly(
    downloaded: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def resolved(*_: object) -> str:
        if constants.HF_HUB_OFFLINE:
            return "resolved"
        raise ModelError("org/model cannot be loaded") from FileMetadataError()

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading, "_resolved_by_name", resolved)
    monkeypatch.setattr(loading, "_config_in_cache", lambda *_: Path("config.json") if downloaded else None)
    with caplog.at_level(logging.WARNING, "layerprobe"):
        if downloaded:
            assert loading._resolved_or_downloaded(Model("org/model"), None) == "resolved"
            assert "taking what was downloaded before" in caplog.text
        else:
            with pytest.raises(ModelError, match="org/model cannot be loaded"):
                loading._resolved_or_downloaded(Model("org/model"), None)
    assert not constants.HF_HUB_OFFLINE


def test_no_message_has_the_user_and_password_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://me:s3cr%2Fet@127.0.0.1:80"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with (
        pytest.raises(ModelError, match=r"what answers at http://127\.0\.0\.1:80 is not the hub") as caught,
        one_line_errors("org/model"),
    ):
        raise OfflineModeIsEnabled(address) from FileMetadataError()
    of_others = first_sentence(ValueError(f"no answer from {address}"))
    assert of_others.startswith("no answer from http://127.0.0.1:")
    assert "s3cr" not in str(caught.value) + of_others
