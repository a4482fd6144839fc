"""The workers of one `up`: which there are, and how their number changes while requests go on."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from kvferry.errors import StartError, UsageError
from kvferry.readiness import Readiness, Shape
from kvferry.stack import BOTH, MAX_WORKERS, Stack, worker_spec
from kvferry.supervisor import Supervisor

LEAVE_SECONDS = 15.0
"""What a drained worker may still take to end: its engine's last step has 10 s."""


class ChangeError(StartError):
    """The pools can't be changed so."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How many workers of each kind are wanted; None: as many as there are."""

    prefill: int | None
    decode: int | None


class Pools:
    """Starts and ends workers, the newest first to go. One change at a time."""

    def __init__(self, stack: Stack, supervisor: Supervisor, readiness: Readiness, say: Callable[[str], None]) -> None:
        """Prepare; ``stack`` knows where the brokers are."""
        self._stack = stack
        self._supervisor = supervisor
        self._readiness = readiness
        self._say = say
        self._names: list[str] = []
        self._changing = True

    @property
    def names(self) -> list[str]:
        """Names of all workers in the order of their start."""
        return list(self._names)

    @property
    def shape(self) -> Shape:
        """How many there are now."""
        return Shape(len(self._of("prefill")), len(self._of("decode")))

    def start(self) -> None:
        """Start the workers that `up` begins with."""
        for name in self._stack.worker_names:
            self._add(name.split("-")[0], essential=True)

    def open(self) -> None:
        """All are there: changes are taken from now on."""
        self._changing = False

    async def scale(self, wish: Wish) -> None:
        """Reach this shape. Raises `StartError` if it can't be; what was started for it has ended then."""
        self._begin()
        try:
            shape = self._checked(wish)
            added = [
                self._add(role)
                for role, wanted in (("prefill", shape.prefill), ("decode", shape.decode))
                for _ in range(wanted - len(self._of(role)))
            ]
            await self._until_there(added)
            surplus = [*self._of("prefill")[shape.prefill :], *self._of("decode")[shape.decode :]]
            await self._remove(*reversed(surplus))
        finally:
            self._changing = False
        self._say(f"there are now {self.shape}")

    async def restart(self) -> None:
        """Replace every worker, one at a time: the successor is there before the old one leaves."""
        self._begin()
        try:
            for old in self.names:
                await self._until_there([self._add(old.split("-")[0])])
                await self._remove(old)
        finally:
            self._changing = False
        self._say(f"every worker was replaced; there are now {', '.join(self._names)}")

    def _begin(self) -> None:
        if self._changing:
            raise ChangeError("the stack is starting, or another change is under way; try again later")
        self._changing = True

    def _checked(self, wish: Wish) -> Shape:
        if self._stack.up.role == BOTH and wish.prefill is not None:
            raise UsageError("--prefill has no meaning with --role both, which has decode workers only")
        now = self.shape
        shape = Shape(
            now.prefill if wish.prefill is None else wish.prefill,
            now.decode if wish.decode is None else wish.decode,
        )
        for number, low in ((shape.prefill, min(1, now.prefill)), (shape.decode, 1)):
            if not low <= number <= MAX_WORKERS:
                raise UsageError(f"{number} workers of a kind: from {low} to {MAX_WORKERS} can be")
        limit = self._stack.up.max_workers
        if limit and shape.prefill + shape.decode > limit:
            raise UsageError(f"{shape} are more than --max-workers {limit}")
        return shape

    def _of(self, role: str) -> list[str]:
        return [name for name in self._names if name.startswith(f"{role}-")]

    def _add(self, role: str, *, essential: bool = False) -> str:
        """Start a worker with the lowest free number."""
        numbers = (f"{role}-{number}" for number in itertools.count(1))
        name = next(name for name in numbers if name not in self._supervisor.names)
        self._names.append(name)
        self._say(f"starting {name}")
        spec = worker_spec(self._stack, name, num_workers=len(self._names))
        self._supervisor.start(spec, essential=essential)
        return name

    async def _until_there(self, added: list[str]) -> None:
        """Wait until the gateways have heard all workers. Ends the added ones if one of them can't run."""

        def check() -> None:
            for name in added:
                if reason := self._supervisor.keeper(name).failure:
                    raise ChangeError(reason)

        try:
            await self._readiness.until(self.shape, check)
        except ChangeError:
            await self._remove(*added)
            raise
        for name in added:
            self._supervisor.keeper(name).essential = True

    async def _remove(self, *names: str) -> None:
        """Let these workers finish and leave."""
        if not names:
            return
        self._names = [name for name in self._names if name not in names]
        drain_seconds = self._stack.worker.shutdown_timeout
        self._say(f"ending {', '.join(names)}: what runs there has {drain_seconds:g} s to finish, then it moves")
        await self._supervisor.stop(*names, grace_seconds=drain_seconds + LEAVE_SECONDS)
