"""Bulk jobs over files of any size, in this process or on a Ray cluster."""

from mnemorank.bulk.checkpoint import Failure
from mnemorank.bulk.job import BulkJob, BulkResult, TooManyFailuresError, run_bulk

__all__ = ["BulkJob", "BulkResult", "Failure", "TooManyFailuresError", "run_bulk"]
