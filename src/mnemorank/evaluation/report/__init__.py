"""The report of a benchmark: one page that needs neither network nor server."""

from mnemorank.evaluation.report.page import report_page, write_report

__all__ = ["report_page", "write_report"]
