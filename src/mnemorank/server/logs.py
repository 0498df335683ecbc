"""Structured logs: a JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from mnemorank._version import __version__
from mnemorank.errors import ArtefactError
from mnemorank.server.settings import Settings

logger = logging.getLogger(__name__)

# Errors whose words are about code and files; others may quote a request.
_HARMLESS = (TypeError, AttributeError, NameError, ImportError, RecursionError, ArtefactError)
_MOST_CAUSES = 10


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
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = trace_of(record.exc_info[1])
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


def log_failure(log: logging.Logger, message: str, error: BaseException, **fields: Any) -> None:
    """Log an error by what and where it is, without its own words, whatever formatter is in use."""
    fields = {**fields, "exception": trace_of(error)}
    log.error("%s: %s", message, reason_of(error), extra={"fields": fields})


def reason_of(error: BaseException) -> str:
    """What failed, without what may be quoted from a request: databases repeat the values they choke on."""
    cause = getattr(error, "orig", None) or error  # a database driver's own error, inside SQLAlchemy's
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    said = cause.strerror if isinstance(cause, OSError) else str(cause) if isinstance(cause, _HARMLESS) else code
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__


def trace_of(error: BaseException) -> str:
    """A traceback, causes first, with `reason_of` in place of each error's words."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < _MOST_CAUSES:
        parts.append("".join(traceback.format_tb(cause.__traceback__)) + reason_of(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n\n".join(reversed(parts))


def announce(settings: Settings, port: int) -> None:
    """Log what the server was started with, without secrets."""
    logger.info("starting", extra={"fields": {"version": __version__, "settings": {**settings.shown(), "port": port}}})
