from __future__ import annotations

from tests.lab.pretraining.conftest import encoder, folder

__all__ = ["encoder", "folder"]
