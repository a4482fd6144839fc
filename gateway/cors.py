"""Answers to browsers that ask whether a web page may read from here (CORS)."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from gateway.http_settings import HttpSettings

TOLD = ("x-request-id", "x-kvferry-request-id", "x-kvferry-path", "retry-after")
"""Headers of ours that a page may read."""


def with_cors(app: ASGIApp, settings: HttpSettings) -> ASGIApp:
    """Return ``app`` as pages of the allowed origins may use it; without any origin, ``app`` itself.

    A preflight request is answered here and doesn't reach ``app``.
    """
    if not settings.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=TOLD,
    )
