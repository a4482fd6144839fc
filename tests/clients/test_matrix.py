"""Real client libraries against a real stack: `make test-clients`. Each cell is a run of that client's program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.roster import CELLS, Client, cell_name
from tests.clients.setup import command_of, ensure, environment_of, variables_of
from tests.clients.shared import contract
from tests.e2e.conftest import Up

pytestmark = [pytest.mark.clients, pytest.mark.model, pytest.mark.nats]

CELL_S = 120.0
"""Most of it is the import of the library, on a busy machine."""
IDLE_S = 5.0
NO_CODES = ("litellm",)
"""Its errors drop the code of the server's."""


@pytest.fixture(scope="session")
def stack(model_dir: object) -> Iterator[Up]:
    up = Up().ready()
    yield up
    assert up.end() == 0


@pytest.fixture(scope="session")
def model(stack: Up) -> str:
    name: str = httpx.get(f"{stack.base_url}/v1/models", timeout=60).json()["data"][0]["id"]
    return name


@pytest.fixture(scope="session")
def expected(stack: Up, model: str) -> dict[str, dict[str, Any]]:
    """What a cell must have found at the least; texts are those that the server gives without any client library."""
    body = {"model": model, "messages": contract.MESSAGES, "temperature": 0, "max_tokens": contract.MAX_TOKENS}
    answer = httpx.post(f"{stack.base_url}/v1/chat/completions", json=body, timeout=60).json()
    text, usage = answer["choices"][0]["message"]["content"], answer["usage"]
    assert contract.STOP in text
    return {
        "plain": {"text": text, "finish": "stop"},
        "stream": {"text": text},
        "usage": {name: usage[name] for name in ("prompt_tokens", "completion_tokens")},
        "forced_tool": {"tool": "Ferry"},
        "n": {"indices": [0, 1]},
        "stop": {"text": text.partition(contract.STOP)[0], "finish": "stop"},
        "wrong_model": {"status": 404, "code": "model_not_found"},
        "too_long": {"status": 400, "code": "context_length_exceeded"},
        "abort": {"num_read": contract.NUM_READ},
    }


def name_of(value: Client | str) -> str:
    return value if isinstance(value, str) else value.folder


@pytest.mark.parametrize(("client", "feature"), CELLS, ids=name_of)
def test_a_client_makes_of_the_answer_what_the_feature_promises(
    stack: Up, model: str, expected: dict[str, dict[str, Any]], results: list[str], client: Client, feature: str
) -> None:
    ensure(client)
    done = subprocess.run(
        [*command_of(client), stack.base_url, model, feature],
        cwd=environment_of(client),
        env=variables_of(client),
        capture_output=True,
        text=True,
        timeout=CELL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    promised = expected.get(feature, {})
    if client.folder in NO_CODES:
        promised = {name: value for name, value in promised.items() if name != "code"}
    assert promised.items() <= found.items(), found
    stack.idle(IDLE_S)
    results.append(cell_name(client, feature))
