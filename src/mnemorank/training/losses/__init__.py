"""Losses, one per file. To add a loss, add a file with a function decorated by `register_loss`; that is all."""

from mnemorank._internal.plugins import import_plugins
from mnemorank.training.losses.protocol import Loss, LossOptions, ScoredLists, TeacherOptions, losses, register_loss

import_plugins(__name__, __path__)

__all__ = ["Loss", "LossOptions", "ScoredLists", "TeacherOptions", "losses", "register_loss"]
