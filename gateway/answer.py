"""What a route makes of a run: one body, or the events of a stream."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import Response

from gateway.access_log import RequestRecord
from gateway.errors import GatewayError
from gateway.requests import Job
from gateway.run import Run
from gateway.services import Services
from gateway.transcript import Piece

Json = dict[str, Any]

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Answer(Protocol):
    """One answer in one route's words. Events are ready to be sent: bytes, none if there is nothing to say yet."""

    @property
    def run(self) -> Run:
        """Whose pieces it words."""

    @property
    def keepalive(self) -> bytes:
        """What a stream says that has nothing to say for a while."""

    def headers(self) -> dict[str, str]:
        """Return what is known as soon as the first token is."""

    async def whole(self, choices: Sequence[list[Piece]]) -> Json:
        """Return the body of an unstreamed answer, from all pieces of each choice."""

    async def opening(self) -> bytes:
        """Return the events before the first piece."""

    def events(self, pieces: Sequence[Piece]) -> bytes:
        """Return the events of pieces that are ready together."""

    async def ending(self) -> bytes:
        """Return the events after the last piece."""

    async def failed(self, error: GatewayError) -> bytes:
        """Return the events that end a stream whose run failed."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was checked. ``answer`` makes the words for its run.

    ``aside``, if there is one, answers at once and runs the job on its own. It takes the request's record, and the
    deadline in milliseconds from its arrival (0: none).
    """

    job: Job
    answer: Callable[[Run], Answer]
    stream: bool
    aside: Callable[[RequestRecord, int], Awaitable[Response]] | None = None


Prepare = Callable[[Mapping[str, object], Services, str], Awaitable[Prepared]]
"""From a body's fields and the request's label. Raises ``GatewayError`` for whatever can be judged before a worker."""


async def whole(answer: Answer) -> Json:
    """Return the body of an answer whose run is read to its end here."""
    pieces: list[list[Piece]] = [[] for _ in range(answer.run.num_choices)]
    while batch := await answer.run.batch():
        for piece in batch:
            pieces[piece.choice].append(piece)
    return await answer.whole(pieces)


def run_headers(run: Run) -> dict[str, str]:
    """Return the headers that tell where a run is."""
    return {"x-kvferry-request-id": run.request_id, "x-kvferry-path": run.path}


def event(body: object, name: str = "") -> bytes:
    """Return one server-sent event, under a name if it has one."""
    data = f"data: {encode(body)}\n\n"
    return (f"event: {name}\n{data}" if name else data).encode()
