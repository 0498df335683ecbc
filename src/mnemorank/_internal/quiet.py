"""Silence the progress bars, load reports and warnings of other libraries."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep transformers, torchao and others off the terminal. Process-wide: not for use in threads."""
    from transformers.utils import logging as untyped

    bars: Any = untyped
    disabled, had_bar = logging.root.manager.disable, bars.is_progress_bar_enabled()
    logging.disable(logging.WARNING)
    bars.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(disabled)
            if had_bar:
                bars.enable_progress_bar()
