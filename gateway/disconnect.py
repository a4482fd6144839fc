"""Work that ends when its client has gone."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818 - it says what happened
    """Nobody is left to answer; ``reason`` is for logs and workers."""

    def __init__(self, reason: str = "client disconnected") -> None:
        super().__init__(reason)
        self.reason = reason


async def until_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Run ``work``; when the client disconnects first, cancel it and raise ``ClientGone``.

    The request's body must have been read. ``work`` is over when this returns or raises.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
