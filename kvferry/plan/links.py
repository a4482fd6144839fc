"""Ways that blocks may take from prefill to decode worker, and how fast each is, with where the figure is from."""

from dataclasses import dataclass

GB = 10**9
NATS_BYTES_PER_S = GB // 2
"""What a worker's one core sends: nats-py, pieces of 512 KiB. Receiving takes half of that, the server between."""

SHM_BYTES_PER_S = GB
"""What two workers of a host move by shared memory, one core each: `python scripts/time_links.py`."""

PCIE_CODING = 128 / 130
"""Since its third version 128 bits travel as 130."""


@dataclass(frozen=True, slots=True)
class Link:
    """``is_bus``: NATS runs over it. ``is_built``: it is a link of ours itself."""

    name: str
    bytes_per_s: float
    origin: str
    is_bus: bool = False
    is_built: bool = False

    def seconds(self, num_bytes: int) -> float:
        """Time on the wire at the link's own rate."""
        return num_bytes / self.bytes_per_s

    def seconds_today(self, num_bytes: int) -> float | None:
        """Time with what is built; None if nothing that is built uses this link."""
        if self.is_built:
            return self.seconds(num_bytes)
        return num_bytes / min(self.bytes_per_s, NATS_BYTES_PER_S) if self.is_bus else None


def _network(gigabits: int) -> Link:
    return Link(f"{gigabits} Gbit/s network", gigabits * GB / 8, "line rate", is_bus=True)


def _pcie(version: int, transfers_per_s: float) -> Link:
    rate = transfers_per_s * 16 * PCIE_CODING / 8
    return Link(f"PCIe {version}.0 x16", rate, f"{transfers_per_s / GB:g} GT/s on 16 lanes, each way")


LINKS = (
    Link("memory of one host", SHM_BYTES_PER_S, "measured: two workers, one core each", is_built=True),
    Link("NATS on loopback", NATS_BYTES_PER_S, "measured: what nats-py sends on one core", is_bus=True),
    *(_network(gigabits) for gigabits in (1, 10, 25, 100, 200)),
    _pcie(4, 16 * GB),
    _pcie(5, 32 * GB),
    Link("NVLink 4", 450 * GB, "18 links of 25 GB/s each way"),
)
