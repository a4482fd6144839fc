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
    """Await ``work``; when the client disconnects first, cancel it and raise ``ClientGone``.

    The request's body must have been read. ``work`` is over when this returns or raises.
    """
    async with _Watch(receive):
        return await work


class _Watch:
    """Cancels the task in its block when the client has gone, as ``asyncio.timeout`` does when time is up."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._num_cancels = task, task.cancelling()
        self._watch = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._is_gone:
            self._watch.cancel()
        elif self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise ClientGone from error
