"""Request bodies: JSON to the letter. No NaN, no infinite numbers, no broken Unicode, whatever Python would take."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from mnemorank.server.errors import Problem


class StrictRequest(Request):
    """A request whose body is parsed strictly. The parsed body is kept for the writer of error bodies."""

    async def json(self) -> Any:
        body = parse_json(await self.body())
        self.scope["mnemorank.body"] = body
        return body


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await answer(StrictRequest(request.scope, request.receive))

        return strict


def parse_json(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Problem(400, "malformed", f"the body is not UTF-8: byte {error.start} is broken") from None
    except UnicodeEncodeError:
        raise Problem(422, "malformed", "the body has half of a surrogate pair, which is not a character") from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise Problem(400, "malformed", message) from None
    except RecursionError:
        raise Problem(400, "malformed", "the body is nested too deeply") from None
    except ValueError as error:
        raise Problem(422, "malformed", f"the body has a number out of range: {error}") from None
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number
