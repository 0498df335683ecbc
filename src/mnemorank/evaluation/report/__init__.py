"""The HTML report of a benchmark: a single page that works offline."""

from mnemorank.evaluation.report.page import report_page, write_report

__all__ = ["report_page", "write_report"]
