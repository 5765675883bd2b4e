from tests.lab.pretraining.conftest import encoder, folder

__all__ = ["encoder", "folder"]
