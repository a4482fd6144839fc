"""Front of a prefill and a decode server that share KV by a folder: `python split_proxy.py PORT PREFILL DECODE FOLDER`.

Each request goes to the prefill server for one token, which leaves the prompt's KV in the folder, and then unchanged to
the decode server, whose answer is passed on as it comes. What lies in the folder longer than any request waits is
deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

KEPT_S = 120.0
SWEEP_S = 10.0
MAX_BODY_BYTES = 64 << 20
DROPPED = ("stream", "stream_options", "min_tokens")


class Proxy:
    """Passes requests on, in two steps."""

    def __init__(self, prefill: str, decode: str, folder: Path) -> None:
        """Take the base URLs of both servers."""
        self._prefill, self._decode, self._folder = prefill, decode, folder

    def app(self) -> web.Application:
        """Return the application that serves it."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes([web.post("/v1/{kind:.*}", self._generate), web.get("/{path:.*}", self._get)])
        app.cleanup_ctx.append(self._resources)
        return app

    async def _resources(self, _: web.Application) -> AsyncIterator[None]:
        timeout = ClientTimeout(total=None, sock_connect=10)
        connector = TCPConnector(limit=0, force_close=True)
        async with ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as self._session:
            sweeper = asyncio.create_task(self._sweep())
            yield
            sweeper.cancel()

    async def _get(self, request: web.Request) -> web.Response:
        async with self._session.get(self._decode + request.path) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        first = {name: value for name, value in body.items() if name not in DROPPED} | {"max_tokens": 1}
        async with self._session.post(self._prefill + request.path, json=first) as answer:
            text = await answer.read()
            if answer.status != 200:
                return web.Response(status=answer.status, body=text, content_type=answer.content_type)
        async with self._session.post(self._decode + request.path, json=body) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await response.prepare(request)
            with contextlib.suppress(ClientError):  # a stream that breaks off ends without its last event
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            oldest = time.time() - KEPT_S
            for entry in self._folder.iterdir():
                if entry.stat().st_mtime < oldest:
                    shutil.rmtree(entry, ignore_errors=True)


def main() -> None:
    """Serve until SIGTERM."""
    port, prefill, decode, folder = sys.argv[1:]
    web.run_app(Proxy(prefill, decode, Path(folder)).app(), host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main()
