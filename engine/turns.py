"""When an engine's steps may use the host's cores: what the loop and the model tell on their way."""

from __future__ import annotations

from typing import Protocol


class Turns(Protocol):
    """Told by the loop where a step begins and ends, and by the engine how far it is."""

    def pause(self) -> float:
        """A step is to begin: for how many seconds it should wait before it asks again, 0 if it may begin now."""

    def begin(self, num_prompts: int) -> None:
        """A step begins; so many prompts aren't computed yet."""

    def layers_done(self) -> None:
        """Some more layers of the step are computed."""

    def end(self) -> None:
        """The step has ended."""

    def rest(self) -> None:
        """There is no work."""


class NoTurns:
    """The cores are this engine's own."""

    def pause(self) -> float:
        """Nobody need be waited for."""
        return 0.0

    def begin(self, num_prompts: int) -> None:
        """Go on."""

    def layers_done(self) -> None:
        """Go on."""

    def end(self) -> None:
        """Nobody waits."""

    def rest(self) -> None:
        """Nobody waits."""
