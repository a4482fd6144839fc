"""Routes that are called without the framework's layers: those that take nothing but a request.

The framework looks through all its routes, and for parameters, cookies and dependencies that such a route doesn't have:
a tenth of what a short request costs. It describes these routes all the same, and serves all others.
"""

import inspect
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access_log import record_of
from gateway.errors import GatewayError
from gateway.http_errors import error_response

Endpoint = Callable[[Request], Awaitable[Response]]


class DirectRoutes:
    """ASGI app: calls a request's endpoint if it is one of ``endpoints``, by method and path, else ``others``."""

    def __init__(self, endpoints: dict[tuple[str, str], Endpoint], others: ASGIApp) -> None:
        self._endpoints = endpoints
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. What an endpoint raises but ``GatewayError`` is the caller's."""
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self._others(scope, receive, send)
            return
        record_of(scope).route = scope["path"]
        try:
            response = await endpoint(Request(scope, receive))
        except GatewayError as error:
            response = refusal(error, scope)
        await response(scope, receive, send)


def refusal(error: GatewayError, scope: Scope) -> Response:
    """Return the answer to a request that was refused or went wrong, which its record notes."""
    record_of(scope).error_code = error.code or str(error.status)
    return error_response(error, scope)


def direct_endpoints(app: FastAPI) -> dict[tuple[str, str], Endpoint]:
    """Return those of the app's endpoints whose one parameter is ``request``, by method and path."""
    return {
        (method, route.path): route.endpoint
        for route in app.routes
        if isinstance(route, APIRoute) and list(inspect.signature(route.endpoint).parameters) == ["request"]
        for method in route.methods or ()
    }
