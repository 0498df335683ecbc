"""Audits of datasets and models, by name. To add one, add a module here that calls `audits.add(Audit(...))`."""

from mnemorank._internal.plugins import import_plugins
from mnemorank.evaluation.audits.protocol import (
    Audit,
    AuditInput,
    Finding,
    audits,
    read_audit_file,
    read_training_file,
)

import_plugins(__name__, __path__)

__all__ = ["Audit", "AuditInput", "Finding", "audits", "read_audit_file", "read_training_file"]
