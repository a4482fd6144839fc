"""What the gateway says about the stack, and the request that a newcomer pastes."""

import http.client
import json
import shlex
from dataclasses import dataclass

MAX_BODY_BYTES = 1 << 16
_TIMEOUT_SECONDS = 2.0
_QUESTION = "What is the capital of Japan?"


@dataclass(frozen=True, slots=True)
class Health:
    """The body of GET /health."""

    status: str
    prefill_workers: int
    decode_workers: int


def reachable_host(host: str) -> str:
    """Return the address at which a server that listens on `host` is reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def ask_health(host: str, port: int) -> Health | None:
    """Return what GET /health says, or None while nothing sensible answers."""
    connection = http.client.HTTPConnection(reachable_host(host), port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/health")
        body = json.loads(connection.getresponse().read(MAX_BODY_BYTES))
        return Health(
            status=str(body["status"]),
            prefill_workers=int(body["prefill_workers"]),
            decode_workers=int(body["decode_workers"]),
        )
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        return None
    finally:
        connection.close()


def base_url(host: str, port: int) -> str:
    """Return the URL at which a gateway that listens there is reached from here."""
    address = reachable_host(host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def first_request(host: str, port: int, model: str, *, with_key: bool) -> str:
    """Return a curl command that asks the stack a question; a key is taken from the variable, and not shown."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": 64,
        "temperature": 0,
    }
    words = ["curl", f"{base_url(host, port)}/v1/chat/completions"]
    words += ["-H", "Content-Type: application/json"]
    key = '-H "Authorization: Bearer $KVFERRY_API_KEY" ' if with_key else ""
    return f"{shlex.join(words)} {key}{shlex.join(['-d', json.dumps(body, ensure_ascii=False)])}"
