"""Children that end are started again with back-off; when all must end, all end."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kvferry.child import MAX_LINE_BYTES, Child
from kvferry.spawn import child_environment
from kvferry.supervisor import ChildSpec, Supervisor
from runtime.backoff import Backoff, how_it_ended

DEADLINE_S = 20.0
STAY = "import signal; print('here', flush=True); signal.pause()"
DEAF = (
    "import signal\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('here', flush=True)\n"
    "while True: signal.pause()"
)


def python(name: str, code: str, *argv: str) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", code, *argv), child_environment())


class Watched:
    """A supervisor, and all that it and its children say."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.lines: list[tuple[str, bytes]] = []
        self._news = asyncio.Event()
        self.supervisor = Supervisor(self._say, self._emit)

    def _say(self, line: str) -> None:
        self.said.append(line)
        self._news.set()

    def _emit(self, name: str, line: bytes) -> None:
        self.lines.append((name, line))
        self._news.set()

    async def until(self, ask: Callable[[], object]) -> None:
        while not ask():
            self._news.clear()
            await self._news.wait()


def run(work: Callable[[Watched], Coroutine[Any, Any, None]]) -> Watched:
    async def bounded() -> Watched:
        watched = Watched()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(watched)
        finally:
            watched.supervisor.kill_all()
            await watched.supervisor.stop(*watched.supervisor.names, grace_seconds=DEADLINE_S)
        return watched

    return asyncio.run(bounded())


def test_backoff_doubles_up_to_half_a_minute() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_backoff_is_short_again_after_a_minute_of_health() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after(1.0)
    assert backoff.after(60.0) == 0.5
    assert backoff.after(59.0) == 1.0


def test_a_worker_that_leaves_in_order_after_a_while_is_started_again_at_once() -> None:
    backoff = Backoff()
    assert backoff.after(Backoff.SETTLED_SECONDS, code=0) == 0.0
    assert backoff.after(Backoff.SETTLED_SECONDS - 0.1, code=0) == 0.5


def test_lines_of_a_child_come_with_its_name() -> None:
    async def work(watched: Watched) -> None:
        code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(2)"
        watched.supervisor.start(python("a", code))
        await watched.supervisor.failed()

    assert sorted(run(work).lines) == [("a", b"err"), ("a", b"out")]


def test_what_ends_unasked_is_started_again_and_said() -> None:
    async def work(watched: Watched) -> None:
        watched.supervisor.start(python("a", "print('here'); raise SystemExit(1)"))
        await watched.until(lambda: len(watched.lines) == 2)

    watched = run(work)
    assert watched.said[0] == "a ended unasked with exit code 1; it is started again in 0.5 s"


def test_what_is_killed_is_started_again_too() -> None:
    async def work(watched: Watched) -> None:
        keeper = watched.supervisor.start(python("a", STAY))
        await watched.until(lambda: len(watched.lines) == 1)
        assert keeper.child is not None
        first = keeper.child.pid
        keeper.child.kill()
        await watched.until(lambda: len(watched.lines) == 2)
        assert keeper.child.pid != first

    assert run(work).said == ["a was ended by SIGKILL; it is started again in 0.5 s"]


def test_an_end_with_exit_code_0_was_not_asked_for_either() -> None:
    async def work(watched: Watched) -> None:
        watched.supervisor.start(python("a", "print('here')"))
        await watched.until(lambda: len(watched.lines) == 2)

    assert "exit code 0" in run(work).said[0]


def test_a_bad_configuration_is_not_tried_again() -> None:
    async def work(watched: Watched) -> None:
        watched.supervisor.start(python("b", STAY))
        watched.supervisor.start(python("a", "print('no such model'); raise SystemExit(2)"))
        assert await watched.supervisor.failed() == "a can't run as configured: no such model"

    assert run(work).said == []


def test_a_child_that_isnt_essential_fails_alone_and_says_why() -> None:
    async def work(watched: Watched) -> None:
        watched.supervisor.start(python("b", STAY))
        keeper = watched.supervisor.start(python("a", "print('no room'); raise SystemExit(2)"), essential=False)
        failed = asyncio.create_task(watched.supervisor.failed())
        while not keeper.failure:
            await asyncio.sleep(0.01)
        assert keeper.failure == "a can't run as configured: no room"
        assert not failed.done()
        failed.cancel()

    run(work)


COUNTER = (
    "import signal\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
    "print('here', flush=True)\n"
    "while True: signal.pause()"
)


def test_a_child_that_is_being_stopped_isnt_asked_twice_and_can_be_killed() -> None:
    async def work(watched: Watched) -> None:
        supervisor = watched.supervisor
        supervisor.start(python("a", COUNTER))
        await watched.until(lambda: watched.lines)
        first, second = (asyncio.create_task(supervisor.stop("a", grace_seconds=DEADLINE_S)) for _ in range(2))
        await watched.until(lambda: len(watched.lines) == 2)
        supervisor.kill_all()
        await asyncio.gather(first, second)
        assert supervisor.names == []

    watched = run(work)
    assert watched.lines == [("a", b"here"), ("a", b"asked")]
    assert watched.said == []


def test_children_that_were_asked_to_end_are_not_started_again() -> None:
    async def work(watched: Watched) -> None:
        keepers = [watched.supervisor.start(python(name, STAY)) for name in ("a", "b")]
        await watched.until(lambda: len(watched.lines) == 2)
        await watched.supervisor.stop("a", "b", "unknown", grace_seconds=DEADLINE_S)
        assert [keeper.child for keeper in keepers] == [None, None]
        assert [keeper.num_ends for keeper in keepers] == [1, 1]

    assert run(work).said == []


def test_a_child_that_doesnt_listen_is_killed_after_the_grace(
    is_alive: Callable[[int], bool],
) -> None:
    async def work(watched: Watched) -> None:
        keeper = watched.supervisor.start(python("a", DEAF))
        await watched.until(lambda: watched.lines)
        assert keeper.child is not None
        pid = keeper.child.pid
        await watched.supervisor.stop("a", grace_seconds=0.05)
        assert not is_alive(pid)

    assert run(work).said == ["a did not end within 0.05 s and is killed"]


def test_a_stop_during_back_off_takes_no_time() -> None:
    async def work(watched: Watched) -> None:
        watched.supervisor.start(python("a", "raise SystemExit(1)"))
        await watched.until(lambda: len(watched.said) == 3)
        started = time.monotonic()
        await watched.supervisor.stop("a", grace_seconds=DEADLINE_S)
        assert time.monotonic() - started < 1.0

    run(work)


def test_what_a_dead_child_left_running_ends_with_it(
    is_alive: Callable[[int], bool],
) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['/bin/sleep', '1000'])\n"
        "print(child.pid, flush=True)\n"
        "sys.exit(2)"
    )

    async def work(watched: Watched) -> None:
        watched.supervisor.start(python("a", code))
        await watched.supervisor.failed()
        grandchild = int(watched.lines[0][1])
        while is_alive(grandchild):
            await asyncio.sleep(0.01)

    run(work)


def test_a_child_stays_in_our_session_in_a_group_of_its_own() -> None:
    async def work(watched: Watched) -> None:
        keeper = watched.supervisor.start(python("a", STAY))
        await watched.until(lambda: watched.lines)
        assert keeper.child is not None
        assert os.getsid(keeper.child.pid) == os.getsid(0)
        assert os.getpgid(keeper.child.pid) == keeper.child.pid

    run(work)


def test_a_program_that_isnt_there_is_an_error() -> None:
    async def work(watched: Watched) -> None:
        watched.supervisor.start(ChildSpec("a", ("/no/such/program",), {}))
        with pytest.raises(FileNotFoundError):
            await watched.supervisor.failed()

    run(work)


def test_a_line_without_end_comes_in_pieces() -> None:
    async def work(watched: Watched) -> None:
        child = Child(
            (sys.executable, "-c", f"print('x' * {3 * MAX_LINE_BYTES + 1}); print('last', end='')"),
            dict(os.environ),
            lambda line: watched.lines.append(("a", line)),
        )
        assert await child.ended() == 0

    lines = [line for _, line in run(work).lines]
    assert lines[-1] == b"last"
    assert b"".join(lines[:-1]) == b"x" * (3 * MAX_LINE_BYTES + 1)
    assert max(map(len, lines)) == MAX_LINE_BYTES


def test_ends_are_put_in_words() -> None:
    assert how_it_ended(-9) == "was ended by SIGKILL"
    assert how_it_ended(-200) == "was ended by signal 200"
    assert how_it_ended(7) == "ended unasked with exit code 7"


OWNER = """
import asyncio, os, sys
from pathlib import Path
from kvferry.spawn import child_environment
from kvferry.supervisor import ChildSpec, Supervisor
code = (
    "from kvferry.tether import tie_if_asked; import os, signal; tie_if_asked();"
    "print(os.getpid(), flush=True); signal.pause()"
)
async def main():
    emit = lambda name, line: print(line.decode(), flush=True)
    supervisor = Supervisor(print, emit)
    for name in "ab":
        supervisor.start(ChildSpec(name, (sys.executable, "-c", code), child_environment()))
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_children_end_with_a_supervisor_that_was_killed(
    environ: dict[str, str],
    eventually: Callable[[Callable[[], object]], object],
    is_alive: Callable[[int], bool],
) -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        children = [int(owner.stdout.readline()) for _ in range(2)]
        assert all(map(is_alive, children))
        owner.kill()
    eventually(lambda: not any(map(is_alive, children)))
