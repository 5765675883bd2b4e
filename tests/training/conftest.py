from __future__ import annotations

from tests.lab.adaptation.conftest import encoder, folder

__all__ = ["encoder", "folder"]
