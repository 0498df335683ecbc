"""Work on the event store, off the event loop: a database that fails is told apart from a request that is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from mnemorank.server.errors import Problem
from mnemorank.server.logs import log_failure, reason_of

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def stored(work: Callable[[], T], outcome: str = "") -> T:
    """Do the work in a thread.

    :param outcome: what the caller should know if the store fails, such as `, and nothing was stored`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return await asyncio.to_thread(work)
    except SQLAlchemyError as error:
        log_failure(logger, "the event store failed", error)
        message = f"the event store failed{outcome}: {reason_of(error)}"
        raise Problem(503, "store_failed", message) from error
