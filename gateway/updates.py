"""One stream, read from its beginning to its end."""

import asyncio
from collections.abc import AsyncIterator

from gateway.generation import Stream, Update


async def updates_of(stream: Stream) -> AsyncIterator[Update]:
    """Yield what comes, as it comes. Raises ``GatewayError``, after the last of it, if the request failed."""
    news = asyncio.Event()
    stream.on_news(news.set)
    while True:
        over = stream.over
        updates = stream.take()
        for update in updates:
            yield update
        if over and not updates:
            return
        if not updates:
            await news.wait()
        news.clear()
