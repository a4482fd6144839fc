"""The pools grow and shrink one change at a time; what can't start leaves the rest as it was."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kvferry import pools as pools_module
from kvferry.errors import UsageError
from kvferry.pools import ChangeError, Pools, Wish
from kvferry.readiness import Readiness, Shape
from kvferry.spawn import child_environment
from kvferry.stack import Stack, read_stack
from kvferry.supervisor import ChildSpec, Supervisor

DEADLINE_S = 20.0
WORKER = """
import signal, sys
def leave(*_):
    print("drained", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: signal.pause()
"""
BROKEN = "print('no memory'); raise SystemExit(2)"


class Heard(Readiness):
    """Stands for the gateways: a worker is heard when it has said that it is ready."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack, lambda line: None)
        self.lines: list[tuple[str, bytes]] = []
        self.held = asyncio.Event()
        self.held.set()

    def emit(self, name: str, line: bytes) -> None:
        self.lines.append((name, line))

    async def until(self, shape: Shape, check: Callable[[], None] = lambda: None) -> None:
        await self.held.wait()
        started = shape.prefill + shape.decode
        while self._num_here() < started:
            check()
            await asyncio.sleep(0.01)

    def _num_here(self) -> int:
        ready = [name for name, line in self.lines if line == b"ready"]
        gone = [name for name, line in self.lines if line == b"drained"]
        return len(ready) - len(gone)


def worker_spec(stack: Stack, name: str, *, num_workers: int) -> ChildSpec:
    code = BROKEN if stack.worker.served_model_name == "broken" else WORKER
    return ChildSpec(name, (sys.executable, "-c", code), child_environment())


class Rig:
    def __init__(self, *argv: str) -> None:
        self.said: list[str] = []
        stack = read_stack(list(argv), {})
        self.heard = Heard(stack)
        self.supervisor = Supervisor(self.said.append, self.heard.emit)
        self.pools = Pools(stack, self.supervisor, self.heard, self.said.append)

    async def started(self) -> "Rig":
        self.pools.start()
        await self.heard.until(self.pools.shape)
        self.pools.open()
        return self

    def drained(self) -> list[str]:
        return [name for name, line in self.heard.lines if line == b"drained"]


@pytest.fixture(autouse=True)
def tiny_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "worker_spec", worker_spec)


def run(work: Callable[[Rig], Coroutine[Any, Any, None]], *argv: str) -> Rig:
    async def bounded() -> Rig:
        rig = Rig(*argv)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(await rig.started())
        finally:
            rig.supervisor.kill_all()
            await rig.supervisor.stop(*rig.supervisor.names, grace_seconds=DEADLINE_S)
        return rig

    return asyncio.run(bounded())


def test_scaling_up_starts_the_next_free_numbers_and_down_drains_the_youngest() -> None:
    async def work(rig: Rig) -> None:
        await rig.pools.scale(Wish(3, None))
        assert rig.pools.names == ["prefill-1", "decode-1", "prefill-2", "prefill-3"]
        await rig.pools.scale(Wish(1, 2))
        assert rig.pools.names == ["prefill-1", "decode-1", "decode-2"]
        assert sorted(rig.drained()) == ["prefill-2", "prefill-3"]
        assert rig.supervisor.names == rig.pools.names

    assert run(work).said[-1] == "there are now 1 prefill and 2 decode workers"


def test_a_worker_that_was_scaled_away_is_not_started_again() -> None:
    async def work(rig: Rig) -> None:
        await rig.pools.scale(Wish(None, 2))
        await rig.pools.scale(Wish(None, 1))
        await rig.pools.scale(Wish(None, 1))

    assert not any("again" in line for line in run(work).said)


def test_a_restart_has_each_successor_ready_before_the_old_one_leaves() -> None:
    async def work(rig: Rig) -> None:
        await rig.pools.restart()
        assert rig.pools.names == ["prefill-2", "decode-2"]
        assert [(name, line) for name, line in rig.heard.lines[2:]] == [
            ("prefill-2", b"ready"),
            ("prefill-1", b"drained"),
            ("decode-2", b"ready"),
            ("decode-1", b"drained"),
        ]

    run(work)


def test_a_worker_that_cant_run_ends_the_change_and_nothing_else() -> None:
    async def work(rig: Rig) -> None:
        stack = rig.pools._stack
        rig.pools._stack = replace(stack, worker=replace(stack.worker, served_model_name="broken"))
        with pytest.raises(ChangeError, match="decode-2 can't run as configured: no memory"):
            await rig.pools.scale(Wish(None, 2))
        assert rig.pools.names == ["prefill-1", "decode-1"]
        rig.pools._stack = stack
        await rig.pools.scale(Wish(None, 2))
        assert rig.pools.shape == Shape(1, 2)

    run(work)


def test_one_change_at_a_time() -> None:
    async def work(rig: Rig) -> None:
        rig.heard.held.clear()
        first = asyncio.create_task(rig.pools.scale(Wish(2, None)))
        await asyncio.sleep(0)
        with pytest.raises(ChangeError, match="another change is under way"):
            await rig.pools.restart()
        rig.heard.held.set()
        await first

    run(work)


def test_nothing_is_changed_before_the_stack_is_ready() -> None:
    async def body() -> None:
        with pytest.raises(ChangeError, match="is starting"):
            await Rig().pools.restart()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("argv", "wish", "reason"),
    [
        ([], Wish(None, 0), "from 1 to 64"),
        ([], Wish(0, None), "from 1 to 64"),
        ([], Wish(65, None), "from 1 to 64"),
        (["--max-workers", "3"], Wish(2, 2), "more than --max-workers 3"),
        (["--role", "both"], Wish(1, 1), "no meaning with --role both"),
    ],
)
def test_a_shape_that_cant_be_is_refused(argv: list[str], wish: Wish, reason: str) -> None:
    async def work(rig: Rig) -> None:
        before = rig.pools.names
        with pytest.raises(UsageError, match=reason):
            await rig.pools.scale(wish)
        assert rig.pools.names == before

    run(work, *argv)
