"""Keep the libraries' own bars, reports and notices off the terminal; what matters we say ourselves."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as _transformers_logging

_bars: Any = _transformers_logging  # its functions carry no types


@contextmanager
def quiet() -> Iterator[None]:
    disabled, had_bar = logging.root.manager.disable, _bars.is_progress_bar_enabled()
    logging.disable(logging.WARNING)
    _bars.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(disabled)
            if had_bar:
                _bars.enable_progress_bar()
