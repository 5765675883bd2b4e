from __future__ import annotations

from tests.adaptation.conftest import encoder, folder

__all__ = ["encoder", "folder"]
