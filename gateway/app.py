"""The HTTP app: routes and error handlers."""

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.access_log import record_of
from gateway.anthropic_api.body import CountBody, MessagesBody
from gateway.anthropic_api.routes import count_tokens, prepare_message
from gateway.body_schema import body_of
from gateway.chat import prepare_chat
from gateway.completions import prepare_completion
from gateway.description import ANSWERS, ERRORS, OF_PAGE, OF_STREAM, OTHER_ERRORS
from gateway.direct_routes import DirectRoutes, direct_endpoints, refusal
from gateway.embeddings import EmbeddingBody, embed
from gateway.errors import GatewayError
from gateway.front import Front
from gateway.generate import generate
from gateway.generation import Dispatcher
from gateway.grammars.checking import GrammarCheck, Grammars
from gateway.http_errors import error_response, from_http
from gateway.http_settings import HttpSettings
from gateway.key_ring import KeyRing
from gateway.limiter import Limiter
from gateway.metrics import HttpMetrics
from gateway.model_card import card_json
from gateway.probes import add_probes, own_version
from gateway.requests import ChatBody, CompletionBody
from gateway.responses_api.background import Background
from gateway.responses_api.body import ResponsesBody
from gateway.responses_api.routes import ResponseRoutes
from gateway.responses_api.shelf import Shelf
from gateway.responses_api.store import MemoryStore
from gateway.served_model import ServedModel
from gateway.services import Services
from gateway.tokenize import DetokenizeBody, TokenizeChat, TokenizeText, detokenize, tokenize
from runtime.metrics import Metrics


class App(FastAPI):
    """All routes, behind ``Front``."""

    def serve_behind(self, keys: KeyRing, services: Services) -> None:
        """Once all routes were added: let requests in whose key is one of ``keys``."""
        self.services = services
        self._front = Front(DirectRoutes(direct_endpoints(self), super().__call__), keys, services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._front(scope, receive, send)


def create_app(
    dispatcher: Dispatcher,
    model: ServedModel,
    settings: HttpSettings,
    metrics: HttpMetrics | None = None,
    keys: KeyRing | None = None,
    limiter: Limiter | None = None,
    grammars: Grammars | None = None,
    background: Background | None = None,
) -> App:
    """Return an app for one event loop; /metrics shows the whole registry of ``metrics``.

    Without ``keys``, those of ``settings`` open it. Without a ``limiter`` it judges limited keys alone. What checks
    ``grammars`` and what runs in the ``background`` is its owner's to close; without the latter, responses are kept in
    memory.
    """
    services = Services(
        dispatcher,
        model,
        settings,
        metrics or HttpMetrics(Metrics()),
        limiter or Limiter(),
        grammars or GrammarCheck(),
    )
    services.metrics.watch_limits(lambda: services.limiter.alone)
    app = App(
        title="KVFerry",
        version=own_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
    )
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(HTTPException, _http_error)
    _add_generation(app, services)
    _add_responses(app, ResponseRoutes(services, background or Background(Shelf(MemoryStore()))))
    _add_messages(app, services)
    _add_tokens(app, services)
    _add_embeddings(app, services)
    _add_models(app, services)
    add_probes(app, services)
    app.serve_behind(KeyRing(settings.api_keys) if keys is None else keys, services)
    return app


def _add_generation(app: FastAPI, services: Services) -> None:
    @app.post("/v1/chat/completions", openapi_extra=body_of(ChatBody), responses=ANSWERS)
    async def chat_completions(request: Request) -> Response:
        """Answer a chat."""
        return await generate(request, services, prepare_chat)

    @app.post("/v1/completions", openapi_extra=body_of(CompletionBody), responses=ANSWERS)
    async def completions(request: Request) -> Response:
        """Continue texts."""
        return await generate(request, services, prepare_completion)


def _add_responses(app: FastAPI, routes: ResponseRoutes) -> None:
    @app.post("/v1/responses", openapi_extra=body_of(ResponsesBody), responses=ANSWERS)
    async def create_response(request: Request) -> Response:
        """Answer a conversation in the words of OpenAI's Responses API."""
        return await routes.create(request)

    @app.get("/v1/responses/{response_id}", openapi_extra=OF_STREAM)
    async def show_response(request: Request, response_id: str) -> Response:
        """Show a kept response."""
        return await routes.show(request, response_id)

    @app.delete("/v1/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> Response:
        """Forget a kept response."""
        return await routes.delete(request, response_id)

    @app.post("/v1/responses/{response_id}/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        """End a response that runs in the background."""
        return await routes.cancel(request, response_id)

    @app.get("/v1/responses/{response_id}/input_items", openapi_extra=OF_PAGE)
    async def input_items(request: Request, response_id: str) -> Response:
        """List what a kept response was asked with."""
        return await routes.items(request, response_id)


def _add_messages(app: FastAPI, services: Services) -> None:
    @app.post("/v1/messages", openapi_extra=body_of(MessagesBody), responses={**ANSWERS, **OTHER_ERRORS})
    async def messages(request: Request) -> Response:
        """Answer a chat in Anthropic's words."""
        return await generate(request, services, prepare_message)

    @app.post("/v1/messages/count_tokens", openapi_extra=body_of(CountBody), responses=OTHER_ERRORS)
    async def message_tokens(request: Request) -> Response:
        """Tell how many tokens a message's prompt has."""
        return await count_tokens(request, services)


def _add_tokens(app: FastAPI, services: Services) -> None:
    @app.post("/tokenize", openapi_extra=body_of(TokenizeText, TokenizeChat))
    async def token_ids(request: Request) -> Response:
        """Tell the token ids of a text or a chat."""
        return await tokenize(request, services)

    @app.post("/detokenize", openapi_extra=body_of(DetokenizeBody))
    async def token_text(request: Request) -> Response:
        """Tell the text of token ids."""
        return await detokenize(request, services)


def _add_embeddings(app: FastAPI, services: Services) -> None:
    @app.post("/v1/embeddings", openapi_extra=body_of(EmbeddingBody))
    async def embeddings(request: Request) -> Response:
        """Answer with a vector for each text."""
        return await embed(request, services)


def _add_models(app: FastAPI, services: Services) -> None:
    def card() -> dict[str, object]:
        model = services.model
        return card_json(model.name, model.created, model.max_model_len)

    @app.get("/v1/models")
    async def models() -> Response:
        """List the model."""
        return JSONResponse({"object": "list", "data": [card()]})

    @app.get("/v1/models/{model_id:path}")
    async def one_model(model_id: str) -> Response:
        """Describe one model; names may have slashes."""
        if model_id == services.folder_model.name:
            return JSONResponse(card())
        raise GatewayError(
            404,
            f"The model {model_id[:256]!r} isn't served here, only {services.folder_model.name!r}",
            code="model_not_found",
            param="model",
        )


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return refusal(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    ours = from_http(error, request.method, request.url.path)
    record_of(request.scope).error_code = ours.code or str(ours.status)
    return error_response(ours, request.scope, error.headers)
