"""Structured logs: a JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from mnemorank._version import __version__
from mnemorank.server.settings import Settings

logger = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """Time, level, message and the fields that came with the record (`extra={"fields": {…}}`)."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send the process's logs to standard error as JSON. For the command alone; the library never configures logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def announce(settings: Settings, port: int) -> None:
    """Log what the server was started with, without secrets."""
    logger.info("starting", extra={"fields": {"version": __version__, "settings": {**settings.shown(), "port": port}}})
