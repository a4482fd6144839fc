"""`kvferry cancel ID`: an operator ends a request, whichever gateway it belongs to."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.errors import UsageError
from kvferry.flags import new_parser, parse, read_checked
from kvferry.visit import Visit, VisitSettings, visiting
from protocol.messages import Cancel, Peer, Released
from runtime import units
from runtime.repeats import Repeats
from runtime.settings import add_flags, setting

WITHIN_S = 10.0
"""A gateway answers within milliseconds; this is for one that is very busy, or just restarts."""

MAX_TEXT_LEN = 200
_REQUEST_PREFIX = "req-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSettings(VisitSettings):
    """What `cancel` is told besides the id."""

    reason: str = setting(units.text, "an operator asked for it", "why, for logs and the client", metavar="TEXT")


def run_cancel(argv: Sequence[str]) -> int:
    """Cancel a request; return 0 if every gateway that was heard has answered, else 1."""
    parser = new_parser("cancel", "End a request on every gateway and worker; its client gets an error.")
    add_flags(parser, CancelSettings)
    parser.add_argument("id", metavar="ID", help="request id, as in logs, the ledger, or an answer's `id`")
    flags = parse(parser, argv)
    settings = read_checked(CancelSettings, flags)
    said = asyncio.run(_cancel(settings, request_id_of(flags.id)))
    sys.stdout.writelines(f"{line}\n" for line in said.values())
    if not said:
        sys.stderr.write("kvferry cancel: no gateway was heard\n")
    return 0 if said and all(line.startswith("released") for line in said.values()) else 1


def request_id_of(text: str) -> str:
    """Return the request's own id, also from an answer's (`chatcmpl-req-…`). Raises `UsageError`."""
    start = text.find(_REQUEST_PREFIX)
    found = text[max(start, 0) :].strip()
    if not found or not found.isprintable() or len(found) > MAX_TEXT_LEN:
        raise UsageError(f"{text!r:.80} is no request id")
    return found


async def _cancel(settings: CancelSettings, request_id: str) -> dict[str, str]:
    async with visiting(settings) as visit:
        return await cancel_everywhere(visit, Cancel(request_id, 0, settings.reason[:MAX_TEXT_LEN]))


async def cancel_everywhere(visit: Visit, cancel: Cancel, within_s: float = WITHIN_S) -> dict[str, str]:
    """Send it to every gateway until each has answered; return what became of it, by gateway."""
    repeats = Repeats()
    waiting = {peer for peer, _ in visit.gateways.values()}
    said: dict[str, str] = {}
    done = asyncio.Event()

    def settle(peer: Peer, line: str) -> None:
        if peer in waiting:
            waiting.remove(peer)
            said[peer.id] = line
        if not waiting:
            done.set()

    def on_released(sender: Peer, released: Released) -> None:
        if released.request_id == cancel.request_id and repeats.stop(sender):
            settle(sender, f"released: {sender.id} has nothing of {cancel.request_id} open")

    def ask(peer: Peer) -> None:
        late = f"no answer: {peer.id} within {within_s:g} s"
        repeats.start(peer, lambda: visit.postbox.send(peer, cancel), within_s, lambda: settle(peer, late))

    visit.postbox.on(Released, on_released)
    try:
        for peer in list(waiting):
            ask(peer)
        if waiting:
            await done.wait()
    finally:
        repeats.close()
    return said
