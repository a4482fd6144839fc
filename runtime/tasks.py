"""Tasks that log their crash and end with their owner, and the loop that a service runs in."""

import asyncio
import faulthandler
import io
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any

from runtime.logs import get_logger

log = get_logger("tasks")

_running: set[asyncio.Task[Any]] = set()  # the loop itself keeps only weak references


def spawn(work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """Run `work` as a task; if it raises, that is logged as `task_failed` with the traceback.

    Needs a running loop.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        log.error("task_failed", cause=error, task=task.get_name())


class Tasks:
    """The tasks of one owner: they end when it closes, a crash of one leaves the others alone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` until it ends or the owner closes.

        Raises:
            RuntimeError: the owner has closed.

        """
        if self._closed:
            work.close()
            raise RuntimeError(f"no new task after close: {name}")
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all and return when they have ended; idempotent.

        A task that closes its own owner is left out, it can't wait for itself.
        """
        self._closed = True
        others = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)


Main = Callable[[asyncio.Event], Awaitable[int]]
"""A service: runs until it is done or the event is set, and returns the exit code."""

CRASHED = 1
"""The exit code of a service whose main function raised."""


STUCK_LOOP_S = 5.0
"""A loop that doesn't even say what it waits for in so long is stuck itself."""


def leave_within(seconds: float) -> None:
    """End this process with exit code `CRASHED` if it still runs by then; it says what each task waits for.

    Nothing that is told to end may hang, whatever it waits for. Needs a running loop.
    """
    asyncio.get_running_loop().call_later(seconds, _leave_now, seconds)
    faulthandler.dump_traceback_later(seconds + STUCK_LOOP_S, exit=True)


def _leave_now(seconds: float) -> None:
    for task in asyncio.all_tasks():
        stack = io.StringIO()
        task.print_stack(file=stack)
        log.error("still_running", task=task.get_name(), stack=stack.getvalue())
    log.error("did_not_leave", within_s=seconds)
    os._exit(CRASHED)


def run_service(main: Main) -> int:
    """Run `main` in a loop of its own (uvloop's if installed) and return its exit code.

    SIGTERM and SIGINT set the event. After the first of them both do again what they do by
    default, so that a second one ends the process at once, even one whose loop is stuck. If
    `main` raises, that is logged and the exit code is `CRASHED`. Only from the main thread.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_until_stopped(main))


async def _until_stopped(main: Main) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in former:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    for number in former:
        signal.signal(number, on_signal)
    try:
        return await main(stop)
    except Exception:
        log.exception("service_crashed")
        return CRASHED
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
