"""Keeps children running: what ends unasked is started again, what must end is ended."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvferry.child import Child
from runtime.backoff import Backoff, how_it_ended

BAD_CONFIGURATION = 2
"""Exit code of a child that can't run as it was told: starting it again would change nothing."""

KILL_SECONDS = 5.0
"""A killed process is gone within milliseconds, unless it hangs in a device driver."""

LOOK_SECONDS = 1.0
"""How often children that were started meanwhile are noticed."""

Say = Callable[[str], None]
Emit = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What is started, again and again, under one name."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


class Keeper:
    """Keeps one child running until it is stopped, or until the child says that it can't be run."""

    def __init__(self, spec: ChildSpec, say: Say, emit: Emit, *, essential: bool) -> None:
        """Prepare; nothing runs before `keep`. ``essential``: without it the whole stack can't run."""
        self.spec = spec
        self.essential = essential
        self.failure = ""
        self.num_ends = 0
        self.last_line = ""
        self.child: Child | None = None
        self._say = say
        self._emit = emit
        self._stopping = asyncio.Event()

    async def keep(self) -> str:
        """Run the child over and over; return why no more ("" when it was asked to stop)."""
        backoff = Backoff()
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once()
            self.num_ends += 1
            if self._stopping.is_set():
                break
            if code == BAD_CONFIGURATION:
                self.failure = f"{self.spec.name} can't run as configured: {self.last_line}"
                return self.failure
            delay = backoff.after(time.monotonic() - started, code)
            when = f"in {delay:g} s" if delay else "at once"
            self._say(f"{self.spec.name} {how_it_ended(code)}; it is started again {when}")
            await self._pause(delay)
        return ""

    async def _run_once(self) -> int:
        self.child = Child(self.spec.command, self.spec.environment, self._on_line)
        try:
            return await self.child.ended()
        finally:
            self.child = None

    async def stop(self, grace_seconds: float) -> None:
        """Ask the child to end and, after the grace, end it. Returns when it is gone.

        It is asked once, however often this is called: asked again, a service leaves at once.
        """
        was_asked = self._stopping.is_set()
        self._stopping.set()
        if (child := self.child) is None:
            return
        if not was_asked:
            child.terminate()
        try:
            await asyncio.wait_for(child.ended(), grace_seconds)
        except TimeoutError:
            self._say(f"{self.spec.name} did not end within {grace_seconds:g} s and is killed")
            child.kill()
            await asyncio.wait_for(child.ended(), KILL_SECONDS)

    def kill(self) -> None:
        """End the child at once."""
        self._stopping.set()
        if self.child is not None:
            self.child.kill()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _on_line(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self.last_line = text
        self._emit(self.spec.name, line)


class Supervisor:
    """All keepers of one `up`."""

    def __init__(self, say: Say, emit: Emit) -> None:
        """Prepare; `say` takes our own lines, `emit` a child's name and one line of its output."""
        self._say = say
        self._emit = emit
        self._keepers: dict[str, Keeper] = {}
        self._tasks: dict[str, asyncio.Task[str]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all children that are kept."""
        return list(self._keepers)

    def keeper(self, name: str) -> Keeper:
        """Return who keeps this child. Raises `KeyError` if there is none."""
        return self._keepers[name]

    def start(self, spec: ChildSpec, *, essential: bool = True) -> Keeper:
        """Start a child and keep it running."""
        keeper = Keeper(spec, self._say, self._emit, essential=essential)
        self._keepers[spec.name] = keeper
        self._tasks[spec.name] = asyncio.create_task(keeper.keep(), name=f"keep {spec.name}")
        return keeper

    async def failed(self) -> str:
        """Wait until an essential child is not run any more though nobody asked; return why."""
        while True:
            tasks = [task for name, task in self._tasks.items() if self._keepers[name].essential]
            if not tasks:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            done, _ = await asyncio.wait(tasks, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if reason := task.result():
                    return reason

    async def stop(self, *names: str, grace_seconds: float) -> None:
        """End these children (those that there are) together, and forget them."""
        keepers = [self._keepers[name] for name in names if name in self._keepers]
        for keeper in keepers:
            keeper.essential = False
        await asyncio.gather(*(keeper.stop(grace_seconds) for keeper in keepers))
        tasks = [self._tasks[keeper.spec.name] for keeper in keepers if keeper.spec.name in self._tasks]
        await asyncio.gather(*tasks, return_exceptions=True)  # `failed` is who reports failures
        for keeper in keepers:  # until now they could be killed
            self._keepers.pop(keeper.spec.name, None)
            self._tasks.pop(keeper.spec.name, None)

    def kill_all(self) -> None:
        """End all children at once."""
        for keeper in self._keepers.values():
            keeper.kill()
