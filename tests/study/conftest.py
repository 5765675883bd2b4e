"""The model and the task of the tests of fine-tuning, for the verdicts on what it shows."""

from tests.finetuning.conftest import folder, task

__all__ = ["folder", "task"]
