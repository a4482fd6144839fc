"""Routes for probes and collectors: is it alive, ready, healthy, how busy, and which version."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from gateway.description import NOT_READY, PAGE
from gateway.services import Services
from runtime.metrics import CONTENT_TYPE


def add_probes(app: FastAPI, services: Services) -> None:
    """Add them."""

    @app.get("/live")
    async def live() -> Response:
        """Say that the process answers: no reason to restart it, whatever is amiss elsewhere."""
        return JSONResponse({"status": "live"})

    @app.get("/ready", responses=NOT_READY)
    async def ready() -> Response:
        """Say whether a new request can be taken here: the bus is there, some path is, and this gateway stays."""
        health = services.dispatcher.health()
        body = {
            "status": "ready" if health.ready else "draining" if health.draining else "not_ready",
            "bus": "connected" if health.connected else "away",
            "paths": health.paths,
            "reasons": health.reasons_json(),
        }
        return _probe(body, ok=health.ready)

    @app.get("/ping", responses=NOT_READY)
    @app.post("/ping", responses=NOT_READY)
    @app.get("/health", responses=NOT_READY)
    async def health_page() -> Response:
        """Say which paths can generate: 200 if any can. A gateway that drains can still."""
        health = services.dispatcher.health()
        body = {
            "status": health.status,
            "paths": health.paths,
            "prefill_workers": health.num_prefill,
            "decode_workers": health.num_decode,
            "model": services.folder_model.name,
            "draining": health.draining,
            "reasons": health.reasons_json(),
        }
        return _probe(body, ok=bool(health.paths))

    @app.get("/metrics", responses=PAGE, response_class=Response)
    async def metrics_page() -> Response:
        """Show metrics as Prometheus text."""
        return Response(await services.metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/load")
    async def load() -> Response:
        """Say how many requests are open here beside this one."""
        return JSONResponse({"server_load": await services.metrics.load() - 1})

    @app.get("/version")
    async def version_page() -> Response:
        """Name the version."""
        return JSONResponse({"version": own_version()})


def _probe(body: dict[str, Any], *, ok: bool) -> Response:
    return JSONResponse(body) if ok else JSONResponse(body, 503, {"retry-after": "1"})


def own_version() -> str:
    """Return the installed version; "unknown" in a bare checkout."""
    try:
        return version("kvferry")
    except PackageNotFoundError:
        return "unknown"
