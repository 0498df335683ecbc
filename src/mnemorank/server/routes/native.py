"""What the native routes share: memories, feedback, learning, service."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt

from mnemorank.server.limits import LONGEST_NAME
from mnemorank.server.routes.shapes import Text

Number = Annotated[StrictFloat | StrictInt, Field(ge=-1e9, le=1e9)]
Name = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]
ERROR_EXAMPLE = {"error": {"code": "invalid", "message": "query: is empty", "field": "query"}}


class NativeShape(BaseModel):
    """A native request. Unknown fields are errors: a misspelt option should not be passed over."""

    model_config = ConfigDict(extra="forbid")
