"""What a newcomer does: start it, paste the command, use the official client."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.e2e.conftest import Up, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

JAPAN = [{"role": "user", "content": "What is the capital of Japan?"}]
LONG = "Tell me a long story about a ferry that crosses a wide river. " * 12


def client(up: Up) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{up.base_url}/v1", api_key="none", max_retries=0)


def model_of(up: Up) -> str:
    with client(up) as api:
        return api.models.list().data[0].id


def test_the_printed_curl_answers_tokyo(split: Up) -> None:
    done = subprocess.run([*split.curl, "-sS", "-m", "60"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert "Tokyo" in answer["choices"][0]["message"]["content"]


def test_the_official_client_gets_the_same_text_streamed_and_not(split: Up) -> None:
    with client(split) as api:
        ask = {"model": model_of(split), "messages": JAPAN, "temperature": 0, "max_tokens": 40}
        whole = api.chat.completions.create(**ask)  # type: ignore[call-overload]
        options = {"include_usage": True}
        chunks = list(api.chat.completions.create(**ask, stream=True, stream_options=options))  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Tokyo" in text
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_answer_names_its_path(split: Up) -> None:
    body = {"model": model_of(split), "messages": JAPAN, "max_tokens": 3}
    answer = httpx.post(f"{split.base_url}/v1/chat/completions", json=body, timeout=60)
    assert answer.headers["x-kvferry-path"] == "split"


def test_prompts_are_computed_on_prefill_and_shipped_whole(split: Up) -> None:
    """Also for n = 8: one prefill, one transfer."""
    for n, salt in ((1, "one"), (8, "eight")):
        split.idle(10)
        names = ("prompt_tokens_computed", "content_bytes_moved")
        before = {(w, m): split.metric(w, m) for w in ("prefill-1", "decode-1") for m in names}
        body = {
            "model": model_of(split),
            "prompt": LONG,
            "max_tokens": 8,
            "n": n,
            "cache_salt": salt,
            "ignore_eos": True,
        }
        answer = httpx.post(f"{split.base_url}/v1/completions", json=body, timeout=60).json()
        assert len(answer["choices"]) == n
        split.idle(10)
        num_tokens = answer["usage"]["prompt_tokens"]
        grew = {key: split.metric(*key) - value for key, value in before.items()}
        assert grew["prefill-1", "prompt_tokens_computed"] == num_tokens
        assert grew["decode-1", "prompt_tokens_computed"] == 0
        block_bytes = 16 * 30 * 2 * 3 * 64 * 2
        assert grew["prefill-1", "content_bytes_moved"] == -(-num_tokens // 16) * block_bytes
        assert grew["decode-1", "content_bytes_moved"] == grew["prefill-1", "content_bytes_moved"]
        assert answer["usage"]["completion_tokens"] == 8 * n


def test_workers_of_one_up_share_memory_and_send_nothing_by_the_bus(split: Up) -> None:
    body = {"model": model_of(split), "prompt": LONG, "max_tokens": 4, "cache_salt": "first"}
    httpx.post(f"{split.base_url}/v1/completions", json=body, timeout=60).raise_for_status()
    until(lambda: split.ledger("prefill-1")["link"]["sharing"] == ["decode-1"], 10, "memory shared")
    split.idle(10)
    names = {link: f'link_sent_bytes{{link="{link}"}}' for link in ("shm", "nats")}
    before = {link: split.metric("prefill-1", name) for link, name in names.items()}
    again = {**body, "cache_salt": "again"}
    httpx.post(f"{split.base_url}/v1/completions", json=again, timeout=60).raise_for_status()
    split.idle(10)
    sent = {link: split.metric("prefill-1", name) - before[link] for link, name in names.items()}
    assert sent["shm"] > 0
    assert sent["nats"] == 0
    assert split.metric("decode-1", 'link_received_bytes{link="shm"}') >= sent["shm"]
    assert split.ledger("prefill-1")["link"] == {"name": "auto", "sharing": ["decode-1"]}
    assert any("handover_adopted" in line and line.rstrip().endswith("link=shm") for line in split.lines)


def test_thirty_two_streams_at_once_finish_and_leave_nothing(split: Up) -> None:
    model = model_of(split)

    def stream(number: int) -> int:
        body = {
            "model": model,
            "prompt": f"Number {number}. {LONG[: 40 * (number % 9 + 1)]}",
            "max_tokens": 24,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        usage = 0
        with httpx.stream("POST", f"{split.base_url}/v1/completions", json=body, timeout=120) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event
                    usage = (event.get("usage") or {}).get("completion_tokens", usage)
        return usage

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(stream, range(32))) == [24] * 32
    split.idle(5)


def test_ending_curl_mid_stream_frees_everything_within_two_seconds(split: Up) -> None:
    body = {"model": model_of(split), "prompt": LONG, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    url = f"{split.base_url}/v1/completions"
    command = ["curl", "-sN", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        for _ in range(6):
            curl.stdout.readline()
        assert split.ledger("decode-1")["holds"]
        curl.kill()
    split.idle(2)


def test_one_token_and_an_end_at_the_first_token_leave_nothing_on_decode(split: Up) -> None:
    body = {"model": model_of(split), "messages": JAPAN, "temperature": 0, "max_tokens": 1, "logprobs": True}
    url = f"{split.base_url}/v1/chat/completions"
    one = httpx.post(url, json=body, timeout=60).json()
    assert one["choices"][0]["finish_reason"] == "length"
    assert one["usage"]["completion_tokens"] == 1
    first = one["choices"][0]["message"]["content"]
    assert not split.ledger("decode-1")["holds"]
    stopped = httpx.post(url, json={**body, "max_tokens": 50, "stop": first}, timeout=60).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["message"]["content"] == ""
    assert stopped["usage"]["completion_tokens"] == 1
    split.idle(1)


def test_an_end_token_at_the_very_first_token_is_counted(split: Up) -> None:
    bias = {"2": 100}
    body = {"model": model_of(split), "messages": JAPAN, "temperature": 0, "max_tokens": 50, "logit_bias": bias}
    answer = httpx.post(f"{split.base_url}/v1/chat/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 1
    split.idle(1)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"model": "other"}, 404),
        ({"messages": []}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": "many"}, 400),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400),
    ],
)
def test_bad_input_gets_openais_error_and_reaches_no_worker(split: Up, change: dict[str, object], status: int) -> None:
    before = [split.metric(worker, "num_steps") for worker in ("prefill-1", "decode-1")]
    body = {"model": model_of(split), "messages": JAPAN, **change}
    answer = httpx.post(f"{split.base_url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert [split.metric(worker, "num_steps") for worker in ("prefill-1", "decode-1")] == before


def test_invalid_json_is_a_400(split: Up) -> None:
    answer = httpx.post(f"{split.base_url}/v1/chat/completions", content=b"{", timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_health_names_the_paths(split: Up) -> None:
    health = httpx.get(f"{split.base_url}/health", timeout=10)
    assert health.status_code == 200
    assert health.json()["status"] == "ok"
    assert "split" in health.json()["paths"]


@pytest.mark.long  # `make test` has it in tests/kvferry/test_up.py
def test_a_decode_worker_that_is_killed_comes_back(model_dir: object) -> None:
    up = Up("--kv-cache-memory-bytes", "64MiB").ready()
    try:
        needle = b"decode-1"
        victims = [p for p in up.descendants() if needle in cmdline(p) and b"engine" not in cmdline(p)]
        assert len(victims) == 1
        subprocess.run(["kill", "-9", str(victims[0])], check=True)
        started = lambda: sum("decode-1 worker: ready" in line for line in up.lines) == 2  # noqa: E731
        until(started, 60, "decode-1 started again")
        assert any("decode-1" in line and "again" in line for line in up.lines if line.startswith("up"))
        asked = {"model": model_of(up), "messages": JAPAN, "max_tokens": 4}
        url = f"{up.base_url}/v1/chat/completions"
        until(lambda: httpx.post(url, json=asked, timeout=60).status_code == 200, 30, "an answer again")
    finally:
        pids = up.descendants()
        up.process.kill()
        up.process.wait()
    until(lambda: not any(map(alive, pids)), 10, "every process of a killed up is gone")


def cmdline(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - a path in /proc
            return file.read()
    except FileNotFoundError:
        return b""


def alive(pid: int) -> bool:
    return cmdline(pid) != b""
