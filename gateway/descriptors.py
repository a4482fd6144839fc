"""File descriptors: as many as connections need, where the system lets us."""

import resource

from runtime.logs import get_logger

OWN = 128
"""For brokers, files, and the moment between a connection's end and its release."""

log = get_logger("gateway.descriptors")


def make_room(num_connections: int) -> None:
    """Raise this process's soft limit to what so many connections need; say so if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_connections + OWN
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    possible = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < needed:
        log.warning("few_descriptors", limit=possible, needed=needed, max_connections=num_connections)
