"""Share the tiny base model of the training tests."""

from tests.training.conftest import tiny_bert

__all__ = ["tiny_bert"]
