"""A gap is the time between two steps in which the device has nothing to compute, though there is work."""

from engine.step_clock import StepClock


class Hand:
    """A clock that is set by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def go(self, seconds: float) -> None:
        self.now += seconds


def step(clock: StepClock, hand: Hand, seconds: float) -> None:
    clock.begin()
    hand.go(seconds)
    clock.end()


def test_steps_and_what_lies_between_them() -> None:
    hand = Hand()
    clock = StepClock(lambda: hand.now)
    step(clock, hand, 0.020)
    assert round(clock.step_ms, 6) == 20
    assert clock.step_gap_ms == 0
    hand.go(0.002)
    step(clock, hand, 0.020)
    assert round(clock.step_gap_ms, 6) == 2
    for _ in range(200):
        hand.go(0.004)
        step(clock, hand, 0.030)
    assert 3.9 < clock.step_gap_ms <= 4
    assert 29.9 < clock.step_ms <= 30


def test_waiting_for_a_turn_and_idling_are_no_gap() -> None:
    hand = Hand()
    clock = StepClock(lambda: hand.now)
    step(clock, hand, 0.020)
    hand.go(0.001)
    with clock.waiting():
        hand.go(0.5)
    hand.go(0.001)
    step(clock, hand, 0.020)
    assert round(clock.step_gap_ms, 6) == 2
    clock.rest()
    hand.go(60)
    step(clock, hand, 0.020)
    assert round(clock.step_gap_ms, 6) == 2
