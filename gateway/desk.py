"""What all requests of one gateway share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.acks import Acks
    from gateway.cancels import Cancels
    from gateway.dispatch_settings import DispatchSettings
    from gateway.gaps import Gaps
    from gateway.hearing import Hearing
    from gateway.in_flight import InFlight
    from gateway.kept_out import KeptOut
    from gateway.outcome import DispatchMetrics
    from gateway.planner import Planner
    from gateway.waiting import Waiting
    from gateway.wants import Wants
    from runtime.postbox import Postbox
    from runtime.repeats import Repeats


@dataclass(frozen=True, slots=True)
class Desk:
    """Made by the dispatcher. ``forget`` is called with the id of a request that has its outcome."""

    postbox: Postbox
    repeats: Repeats
    planner: Planner
    in_flight: InFlight
    hearing: Hearing
    kept_out: KeptOut
    waiting: Waiting
    acks: Acks
    wants: Wants
    cancels: Cancels
    gaps: Gaps
    settings: DispatchSettings
    metrics: DispatchMetrics
    forget: Callable[[str], None]
