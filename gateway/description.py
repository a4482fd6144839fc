"""What /openapi.json says of bodies and errors, which are read by ``body`` and not by the framework."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.anthropic_api.body import CountBody, MessagesBody
from gateway.body import Body
from gateway.chat_messages import Message
from gateway.embeddings import EmbeddingBody
from gateway.requests import ChatBody, CompletionBody
from gateway.responses_api.body import ResponsesBody
from gateway.tokenize import DetokenizeBody, TokenizeChat, TokenizeText

BODIES: tuple[type[Body], ...] = (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    ResponsesBody,
    MessagesBody,
    CountBody,
    TokenizeText,
    TokenizeChat,
    DetokenizeBody,
)
_REF = "#/components/schemas/{model}"
_NOTHING: list[dict[str, Any]] = [{"type": "null"}, {"type": "object", "maxProperties": 0}]
"""Values that are taken as if the field weren't there."""


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
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "As with 200, and it can't serve now"}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or with stream true its events", "content": {"text/event-stream": {}}}
}
PAGE: dict[int | str, dict[str, Any]] = {200: {"description": "Prometheus text", "content": {"text/plain": {}}}}


class DescribedApp(FastAPI):
    """An app whose description has the parts that ``body_of`` refers to."""

    def openapi(self) -> dict[str, Any]:
        """Return the description, made once."""
        if self.openapi_schema is None:
            super().openapi()["components"]["schemas"].update(_parts())
        assert self.openapi_schema is not None
        return self.openapi_schema


def body_of(*models: type[Body]) -> dict[str, Any]:
    """Return the description of a route's body: any of several ``BODIES``."""
    refs = [{"$ref": _REF.format(model=each.__name__)} for each in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


def _parts() -> dict[str, Any]:
    """Bodies, and what they are made of."""
    bodies: tuple[type[Body], ...] = (*BODIES, Message)
    _, described = models_json_schema([(each, "validation") for each in bodies], ref_template=_REF)
    parts: dict[str, Any] = described["$defs"]
    for chat in (ChatBody, TokenizeChat):
        parts[chat.__name__]["properties"]["messages"]["items"] = {"$ref": _REF.format(model="Message")}
    for each in BODIES:
        part = parts[each.__name__]
        fields = part["properties"]
        for name in fields.keys() - part.get("required", ()):
            fields[name] = {"anyOf": [fields[name], *_NOTHING]}
    return parts
