"""What /openapi.json says of answers: errors above all."""

from typing import Any

from pydantic import BaseModel


class ErrorDetails(BaseModel):
    """What was wrong; ``param`` is the dotted path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error has this form."""

    error: ErrorDetails


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request can't be served as it is"},
    "5XX": {"model": ErrorAnswer, "description": "The server can't serve it now, or failed"},
}
OTHER_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": "An error in Anthropic's form", "model": None} for status in ERRORS
}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "As with 200, and it can't serve now"}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or with stream true its events", "content": {"text/event-stream": {}}}
}
PAGE: dict[int | str, dict[str, Any]] = {200: {"description": "Prometheus text", "content": {"text/plain": {}}}}


def query(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a route's part that describes what may stand in its query."""
    return {"parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]}


OF_STREAM = query(stream={"type": "boolean"}, starting_after={"type": "integer", "minimum": 0, "maximum": 999_999_999})
OF_PAGE = query(
    limit={"type": "integer", "minimum": 1, "maximum": 100}, order={"enum": ["asc", "desc"]}, after={"type": "string"}
)
