from tests.finetuning.conftest import encoder, folder

__all__ = ["encoder", "folder"]
