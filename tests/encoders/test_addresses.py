"""Addresses with a password."""

from __future__ import annotations

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

from layerprobe.encoders.failures import first_sentence, one_line_errors
from layerprobe.errors import ModelError


def test_no_message_has_the_user_and_password_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://me:s3cr%2Fet@127.0.0.1:80"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with (
        pytest.raises(ModelError, match=r"the answer at http://127\.0\.0\.1:80 does not come from the hub") as caught,
        one_line_errors("org/model"),
    ):
        raise OfflineModeIsEnabled(address) from FileMetadataError()
    of_others = first_sentence(ValueError(f"no answer from {address}"))
    assert of_others.startswith("no answer from http://127.0.0.1:")
    assert "s3cr" not in str(caught.value) + of_others
