"""What the HTTP side counts and measures. ``path`` is how a first token was made."""

from collections.abc import Callable
from typing import Protocol

from gateway.access_log import RequestRecord
from runtime.metrics import Metrics

REQUEST_BUCKETS_S = (
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
"""From a refusal to a long answer on a CPU."""


class Siblings(Protocol):
    """All processes that answer on this port. Both raise ``GatewayError``."""

    async def metrics(self) -> bytes:
        """Return their metrics, added up, as Prometheus text."""

    async def load(self) -> int:
        """Return how many requests are open in all."""


class HttpMetrics:
    """Made once per process; they are in the registry from then on."""

    def __init__(self, metrics: Metrics) -> None:
        self.all = metrics
        self.num_running = 0
        """Requests that wait or run now, in this process."""
        self.siblings: Siblings | None = None
        """None: this process is alone on its port."""
        self._requests = metrics.counter("gateway_requests", "Requests answered or given up (499)", ("route", "status"))
        self._running = metrics.gauge("gateway_requests_running", "Requests that wait or run")
        self._paths = metrics.counter("gateway_paths", "Requests by how their first token was made", ("path",))
        self._prompt = metrics.counter("gateway_prompt_tokens", "Tokens of prompts that were computed or found cached")
        self._cached = metrics.counter("gateway_cached_tokens", "Tokens of prompts whose compute was skipped")
        self._output = metrics.counter("gateway_output_tokens", "Tokens of answers, as in usage")
        self._choices = metrics.counter("gateway_choices", "Choices that ended", ("finish_reason",))
        self._first_token = metrics.histogram(
            "gateway_first_token_seconds", "From a request's arrival to its first token", ("path",)
        )
        self._between = metrics.histogram("gateway_between_tokens_seconds", "Between two arrivals of a choice's tokens")
        self._whole = metrics.histogram("gateway_request_seconds", "Whole requests", ("route",), REQUEST_BUCKETS_S)
        self._limited = metrics.counter("gateway_limited", "Requests beyond a limit of their key", ("limit",))
        self._alone = metrics.gauge("gateway_limits_alone", "1 while keys are judged without the other gateways")
        self._cut_off = metrics.counter(
            "gateway_connections_refused", "Connections ended for their clients' fault", ("reason",)
        )

    async def page(self) -> bytes:
        """Return what the port has to tell, as Prometheus text. Raises ``GatewayError``."""
        return self.all.render() if self.siblings is None else await self.siblings.metrics()

    async def load(self) -> int:
        """Return how many requests are open at the port. Raises ``GatewayError``."""
        return self.num_running if self.siblings is None else await self.siblings.load()

    def began(self) -> None:
        """Count a request that arrived."""
        self.num_running += 1
        self._running.inc()

    def first_token(self, path: str, seconds: float) -> None:
        """Note a request's first token."""
        self._paths.labels(path).inc()
        self._first_token.labels(path).observe(seconds)

    def between_tokens(self, seconds: float) -> None:
        """Note tokens that follow others of their choice."""
        self._between.observe(seconds)

    def choice_ended(self, finish_reason: str) -> None:
        """Count a choice's end."""
        self._choices.labels(finish_reason).inc()

    def limited(self, limit: str) -> None:
        """Count a request that a limit of its key refused."""
        self._limited.labels(limit).inc()

    def watch_limits(self, alone: Callable[[], bool]) -> None:
        """Show whether keys are judged alone."""
        self._alone.set_function(lambda: float(alone()))

    def refused_connection(self, reason: str) -> None:
        """Count a connection that was ended because of what its client did, or didn't."""
        self._cut_off.labels(reason).inc()

    def ended(self, record: RequestRecord, seconds: float) -> None:
        """Count a request that is over, whatever its end."""
        self.num_running -= 1
        self._running.dec()
        self._requests.labels(record.route, str(record.status)).inc()
        self._whole.labels(record.route).observe(seconds)
        if record.first_token is not None:
            self._prompt.inc(record.num_prompt_tokens)
        self._cached.inc(record.num_cached_tokens)
        self._output.inc(record.num_tokens)
