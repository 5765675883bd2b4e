from pathlib import Path

import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.lab.pretraining.values import Adaptation
from tests.cli.conftest import layerprobe
from tests.lab.pretraining.jobs import adapted
from tests.models import save_tiny, tiny_config, tiny_tokenizer

__all__ = ["encoder", "folder", "layerprobe", "uninterrupted", "with_head"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a tiny BERT without a head."""
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a tiny BERT with its head for masked language modelling."""
    import torch
    from transformers import BertForMaskedLM

    path = tmp_path_factory.mktemp("models") / "bert-mlm"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = BertForMaskedLM(tiny_config("bert"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def encoder(folder: Path) -> Encoder:
    return load_encoder(str(folder), device="cpu")


@pytest.fixture(scope="session")
def uninterrupted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Adaptation, Path]:
    """What a run without an interruption gives, and its folder."""
    out = tmp_path_factory.mktemp("adapted") / "whole"
    return adapted(folder, out), out
