"""What a teacher is asked, and the form its answer must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GRADES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PROMPT = (
    "You grade how well memories answer a question that is put to the person's assistant. For each memory give one of "
    "0, 0.2, 0.4, 0.6, 0.8, 1: 1 answers the question fully, 0.8 nearly, 0.6 answers a part of it, 0.4 is about the "
    "same thing and helps a little, 0.2 only shares a topic, 0 has nothing to do with it. A memory that was true once "
    "and has been superseded does not answer a question about now. Judge each memory by itself. Answer with JSON only: "
    '{"grades": [{"memory": 1, "grade": 0.4}, …]}, one entry for each memory.'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "grades": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"memory": {"type": "integer"}, "grade": {"type": "number", "enum": list(GRADES)}},
                "required": ["memory", "grade"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["grades"],
    "additionalProperties": False,
}


def request_body(model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    """A chat completion request, as OpenAI's API and those made after it take it."""
    memories = "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))
    return {
        "model": model,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": PROMPT},
            {"role": "user", "content": f"Question: {query}\n\nMemories:\n{memories}"},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "grades", "strict": True, "schema": SCHEMA}},
    }
