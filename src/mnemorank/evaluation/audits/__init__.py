"""Audits, by name. To add one: write a file, register its Audit, import it here."""

from mnemorank.evaluation.audits import features, labels, leakage, length, metadata, shuffle, template
from mnemorank.evaluation.audits.material import read_audited, read_examples, read_training
from mnemorank.evaluation.audits.protocol import Audit, Finding, Material, audits

__all__ = [
    "Audit",
    "Finding",
    "Material",
    "audits",
    "features",
    "labels",
    "leakage",
    "length",
    "metadata",
    "read_audited",
    "read_examples",
    "read_training",
    "shuffle",
    "template",
]
