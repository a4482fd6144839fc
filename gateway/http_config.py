"""How the HTTP server is configured, with our bounds for each of its connections."""

from collections.abc import Callable
from typing import Any

import uvicorn

from gateway.http_settings import HttpSettings

OnRefused = Callable[[str], None]
"""Called with the reason when a connection is ended for its client's fault."""


class BoundedConfig(uvicorn.Config):
    """uvicorn's, with what a ``BoundedProtocol`` asks of it."""

    def __init__(self, app: Any, settings: HttpSettings, on_refused: OnRefused, **options: Any) -> None:
        super().__init__(app, ws="none", **options)
        self.settings = settings
        self.on_refused = on_refused
