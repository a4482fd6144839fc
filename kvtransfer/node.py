"""A worker on its bus: what it says of itself in heartbeats, at its status port and in metrics."""

from __future__ import annotations

import hashlib
from functools import partial

from engine.capacity import Capacity
from engine.port import EnginePort, Started
from kvtransfer.contents import PoolContents
from kvtransfer.link import Link
from kvtransfer.worker import Worker, WorkerParts
from protocol.codec import WIRE_VERSION
from protocol.messages import WorkerStatus
from runtime.metrics import Metrics
from runtime.postbox import Postbox
from runtime.roster import Roster
from runtime.worker_settings import WorkerSettings


def fingerprint(started: Started) -> str:
    """Equal on two workers that may be paired: wire, block layout, KV dtype and weights."""
    text = f"{WIRE_VERSION}|{started.layout.fingerprint}|{started.ready.weights}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def capacity(started: Started, max_num_seqs: int) -> Capacity:
    """What the worker holds, as `kvferry plan` says it."""
    ready = started.ready
    return Capacity(ready.weight_bytes, started.layout, ready.num_blocks, ready.max_model_len, max_num_seqs)


class WorkerNode:
    """One worker's identity, state and neighbors."""

    def __init__(self, role: str, settings: WorkerSettings, engine: EnginePort, postbox: Postbox, link: Link) -> None:
        """Needs a running loop."""
        self.role = role
        self.settings = settings
        self.engine = engine
        self.postbox = postbox
        self.roster = Roster(postbox)
        self.roster.on_lost(link.lost)
        self.link = link
        self.state = "starting"
        self.status_url = ""
        self.parts = WorkerParts(self.postbox, self.roster, engine, PoolContents(engine.pool), link)

    def status(self, worker: Worker) -> WorkerStatus:
        """The heartbeat."""
        started, load = self.engine.started, worker.load
        worker.pulse.ask()
        return WorkerStatus(
            role=self.role,
            state=self.state,
            model=self.settings.served_model_name or started.model_name,
            max_model_len=started.ready.max_model_len,
            weights=started.ready.weights,
            layout=started.layout.fingerprint,
            fingerprint=fingerprint(started),
            numerics=started.ready.numerics,
            kv_dtype=started.layout.dtype,
            status_url=self.status_url,
            progress=worker.pulse.progress(),
            busy=worker.pulse.owed,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            max_num_seqs=self.settings.max_num_seqs,
            waiting_tokens=load.waiting_tokens,
            total_blocks=started.ready.num_blocks,
            free_blocks=load.free_blocks + load.cached_blocks if load.total_blocks else started.ready.num_blocks,
            reserved_blocks=load.reserved_blocks,
            local_prefill_tokens=self.settings.local_prefill_tokens if self.role == "decode" else 0,
        )

    def ready(self, worker: Worker) -> tuple[bool, str]:
        """Whether this worker takes new work, and why not."""
        if not self.postbox.bus.connected:
            return False, "the bus is away"
        stuck_s = worker.pulse.stuck_s()
        if stuck_s:
            return False, f"the engine has made no progress for {stuck_s:.0f} s"
        misfit = self.misfit()
        if misfit:
            return False, misfit
        return self.state == "ready", self.state

    def misfit(self) -> str:
        """Why no worker of the other kind can be paired with this one; "" if one can, or none is there."""
        other = "decode" if self.role == "prefill" else "prefill"
        mine = self.engine.started
        others = [status for _, status in self.roster.workers(other)]
        if not others or any(status.fingerprint == fingerprint(mine) for status in others):
            return ""
        layouts, weights = {s.layout for s in others}, {s.weights for s in others}
        if mine.ready.weights not in weights:
            return f"no {other} worker has these weights ({mine.ready.weights}); they have {sorted(weights)}"
        return f"no {other} worker has this block layout ({mine.layout.fingerprint}); they have {sorted(layouts)}"


def worker_metrics(node: WorkerNode, worker: Worker) -> Metrics:
    """A worker's metrics: all read from its last load report."""
    metrics = Metrics()
    metrics.watch_bus("control", node.postbox.bus)
    metrics.watch_refused(lambda: node.postbox.num_refused)
    for name in worker.load._fields:
        text = f"{name.replace('_', ' ')}, as of the engine's last report"
        metrics.watch(name, text, lambda name=name: float(getattr(worker.load, name)))  # type: ignore[misc]
    metrics.watch("held_attempts", "attempts held here", lambda: float(len(worker.held)))
    metrics.watch("content_bytes_moved", "content bytes of finished transfers", lambda: float(worker.bytes_moved))
    _watch_link(metrics, node.link)
    return metrics


def _watch_link(metrics: Metrics, link: Link) -> None:
    """What each way of contents has moved, and why the better one wasn't taken."""
    sent = metrics.gauge("link_sent_bytes", "frames of contents sent, since start", ["link"])
    received = metrics.gauge("link_received_bytes", "frames of contents received, since start", ["link"])
    for name in link.counters:
        sent.labels(name).set_function(partial(_moved, link, name, "sent_bytes"))
        received.labels(name).set_function(partial(_moved, link, name, "received_bytes"))
    fallbacks = metrics.gauge("link_fallbacks", "frames that couldn't go by the better link, since start", ["reason"])
    for reason in link.fallbacks:
        fallbacks.labels(reason).set_function(partial(_fell_back, link, reason))


def _moved(link: Link, name: str, counter: str) -> float:
    return float(getattr(link.counters[name], counter))


def _fell_back(link: Link, reason: str) -> float:
    return float(link.fallbacks[reason])
