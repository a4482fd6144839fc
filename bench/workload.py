"""Workloads: how many requests of which lengths arrive when, and the named ones."""

from dataclasses import dataclass

POISSON, CONSTANT = "poisson", "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths are tokens. One of three kinds, by which of its last fields are set."""

    name: str
    prompt_len: int = 256
    """Each prompt's own tokens, the shared prefix not counted."""

    output_len: int = 128
    shared_prefix_len: int = 0
    num_prompts: int = 0

    concurrency: int = 0
    """Closed loop: so many requests are always under way."""

    rate_per_s: float = 0.0
    """Open loop: requests arrive whether or not others are done; infinite: all at once."""

    arrival: str = POISSON
    duration_s: float = 0.0

    num_streams: int = 0
    """Steady: so many streams, each request followed at once by the next, watched for `duration_s`."""

    long_prompt_len: int = 0
    long_output_len: int = 0
    long_every_s: float = 0.0
    """Steady: a long prompt arrives so often, whether or not others are done; 0: none."""

    trace: str = ""
    """Open loop: a file that says when which lengths arrive (see `bench/trace.py`)."""

    trace_speed: float = 1.0
    """How many times faster than in the file requests arrive."""

    trace_max_len: int = 0
    """Requests of the trace with more tokens, in and out, are left out; 0: none are."""

    @property
    def kind(self) -> str:
        """``closed``, ``open`` or ``steady``."""
        if self.num_streams:
            return "steady"
        return "open" if self.rate_per_s or self.trace else "closed"

    @property
    def num_longs(self) -> int:
        """Long prompts that arrive in the window, the first at its start."""
        if not self.long_every_s:
            return 0
        return int((self.duration_s - 1e-9) // self.long_every_s) + 1

    def title(self) -> str:
        """Say in words what it is."""
        if self.trace:
            return f"a trace at {self.trace_speed:g} times its speed{self._parts()}"
        shared = f"{self.shared_prefix_len} shared + " if self.shared_prefix_len else ""
        lengths = f"{shared}{self.prompt_len} tokens in, {self.output_len} out"
        if self.kind == "steady":
            longs = f", a prompt of {self.long_prompt_len} every {self.long_every_s:g} s" if self.long_every_s else ""
            return f"{self.num_streams} steady streams ({lengths}){longs}, for {self.duration_s:g} s"
        if self.kind == "closed":
            return f"{self.num_prompts} requests, {self.concurrency} at a time, {lengths}"
        if self.rate_per_s == float("inf"):
            return f"{self.num_prompts} requests at once, {lengths}"
        many = f"{self.num_prompts} requests" if self.num_prompts else f"{self.duration_s:g} s of requests"
        return f"{many}, {self.rate_per_s:g} a second ({self.arrival}), {lengths}"

    def _parts(self) -> str:
        parts = [f"its first {self.duration_s:g} s"] if self.duration_s else []
        parts += [f"{self.num_prompts} requests at the most"] if self.num_prompts else []
        parts += [f"none longer than {self.trace_max_len} tokens"] if self.trace_max_len else []
        return "".join(f", {part}" for part in parts)


_STEADY = Workload(name="f0", prompt_len=64, output_len=1024, num_streams=8, duration_s=30.0)

NAMED = {
    each.name: each
    for each in (
        Workload(name="a", num_prompts=16, concurrency=1, prompt_len=128, output_len=128),
        Workload(name="b", num_prompts=64, concurrency=16, prompt_len=256, output_len=128),
        Workload(name="c", num_prompts=96, concurrency=32, prompt_len=512, output_len=64),
        Workload(name="d", num_prompts=48, concurrency=16, prompt_len=64, output_len=256),
        Workload(name="e", num_prompts=64, concurrency=16, prompt_len=32, output_len=32, shared_prefix_len=1024),
        _STEADY,
        Workload(
            name="f",
            prompt_len=_STEADY.prompt_len,
            output_len=_STEADY.output_len,
            num_streams=_STEADY.num_streams,
            duration_s=60.0,
            long_prompt_len=2000,
            long_output_len=16,
            long_every_s=4.0,
        ),
    )
}
"""One stream; balanced; prefill-heavy; decode-heavy; shared prefix; steady streams quiet, and disturbed."""
