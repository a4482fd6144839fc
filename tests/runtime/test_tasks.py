"""Tasks log their crash and end with their owner; a service ends on signals with its exit code."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from runtime.tasks import CRASHED, Tasks, run_service, spawn


def test_a_task_is_kept_alive_without_anybody_holding_it(run: Any) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            done.set()

        spawn(work(), "work")
        gc.collect()
        await done.wait()

    run(main())


def test_a_crash_is_logged_with_its_task_and_traceback(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise RuntimeError("broken on purpose")

    async def main() -> None:
        await asyncio.wait([spawn(broken(), "the broken one")])

    run(main())
    [record] = caplog.records
    assert record.getMessage() == "task_failed"
    assert record.__dict__["fields"] == {"task": "the broken one"}
    assert record.exc_info is not None
    assert "broken on purpose" in str(record.exc_info[1])


def test_an_owner_ends_its_tasks_and_takes_no_new_ones(run: Any) -> None:
    async def main() -> None:
        owner, ended = Tasks(), []

        async def work(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(number)

        for number in range(3):
            owner.spawn(work(number), "work")
        await asyncio.sleep(0)
        await owner.close()
        await owner.close()
        assert sorted(ended) == [0, 1, 2]
        assert len(owner) == 0
        with pytest.raises(RuntimeError, match="after close"):
            owner.spawn(work(4), "late")

    run(main())


def test_a_crash_leaves_the_other_tasks_of_the_owner_alone(run: Any) -> None:
    async def main() -> None:
        owner = Tasks()

        async def broken() -> None:
            raise RuntimeError("broken on purpose")

        other = owner.spawn(asyncio.Event().wait(), "other")
        await asyncio.wait([owner.spawn(broken(), "broken")])
        assert not other.done()
        await owner.close()

    run(main())


def test_a_task_may_close_its_owner(run: Any) -> None:
    async def main() -> None:
        owner = Tasks()
        other = owner.spawn(asyncio.Event().wait(), "other")
        await owner.spawn(owner.close(), "closes")
        assert other.cancelled()

    run(main())


def test_a_service_returns_its_exit_code_and_its_signal_handlers_are_undone() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def main(stop: asyncio.Event) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        return 7

    assert run_service(main) == 7
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_service_that_raises_is_logged_and_has_crashed(caplog: pytest.LogCaptureFixture) -> None:
    async def main(stop: asyncio.Event) -> int:
        raise RuntimeError("broken on purpose")

    assert run_service(main) == CRASHED
    assert [each.getMessage() for each in caplog.records] == ["service_crashed"]


SLOW_SERVICE = """
    import asyncio, sys, time
    from runtime.tasks import run_service

    async def main(stop):
        print("up", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        while "stuck" in sys.argv: pass
        await asyncio.Event().wait()

    sys.exit(run_service(main))
"""


@pytest.mark.parametrize("mode", ["idle", "stuck"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_service_at_once(mode: str, number: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SLOW_SERVICE), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        assert process.wait(timeout=10) == -number


@pytest.mark.parametrize(
    ("hanging", "said"),
    [
        ("await asyncio.Event().wait()", "still_running"),  # a task that nobody wakes
        ("time.sleep(600)", "Timeout"),  # a loop that is stuck
    ],
)
def test_a_process_that_is_to_leave_and_hangs_says_where_and_ends(hanging: str, said: str) -> None:
    script = f"""
        import asyncio, time
        from runtime import tasks
        from runtime.logs import setup_logs
        setup_logs("info", "test", "test-1")
        tasks.STUCK_LOOP_S = 0.1

        async def hang():
            {hanging}

        async def main(stop):
            tasks.leave_within(0.05)
            await asyncio.gather(hang())
            return 0

        tasks.run_service(main)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30)
    assert done.returncode == CRASHED
    assert said in done.stderr
    assert "in hang" in done.stderr
