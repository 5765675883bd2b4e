from tests.encoders.conftest import checkpoint, loaded
from tests.finetuning.conftest import encoder, folder

__all__ = ["checkpoint", "encoder", "folder", "loaded"]
