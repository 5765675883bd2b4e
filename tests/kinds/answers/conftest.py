from tests.encoders.conftest import checkpoint, loaded

__all__ = ["checkpoint", "loaded"]
