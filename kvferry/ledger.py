"""`kvferry ledger`: every hold on every worker of a stack, and whether the pools' sums are right."""

import asyncio
import http.client
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from kvferry.flags import new_parser, parse, read_checked
from kvferry.table import table
from kvferry.visit import VisitSettings, visiting
from runtime.settings import add_flags, parse_bool, setting

ASK_SECONDS = 5.0
MAX_BODY_BYTES = 16 << 20
"""A hold takes about 150 bytes, and a worker has a few thousand at the most."""

_POOL = ("total", "free", "cached", "held", "quarantined", "reserved")
_HOLD = ("request_id", "attempt", "owner", "other", "state", "age_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings(VisitSettings):
    """What `ledger` is told."""

    json: bool = setting(parse_bool, False, "print JSON instead of tables")


@dataclass(frozen=True, slots=True)
class WorkerLedger:
    """What one worker said of its blocks, or why it said nothing."""

    worker: str
    pool: dict[str, int]
    holds: list[dict[str, Any]]
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it answered and every block is in one state."""
        pool = self.pool
        return not self.error and sum(pool[name] for name in _POOL[1:5]) == pool["total"]


def run_ledger(argv: Sequence[str]) -> int:
    """Print the ledger; return 0 if every worker answered and every sum is right, else 1."""
    parser = new_parser("ledger", "Show every hold on every worker, and whether the pools' sums are right.")
    add_flags(parser, LedgerSettings)
    settings = read_checked(LedgerSettings, parse(parser, argv))
    ledgers = asyncio.run(_collect(settings))
    sys.stdout.write(as_json(ledgers) if settings.json else as_text(ledgers))
    return 0 if ledgers and all(each.is_right for each in ledgers) else 1


async def _collect(settings: VisitSettings) -> list[WorkerLedger]:
    async with visiting(settings) as visit:
        urls = {worker: status.status_url for worker, (_, status) in sorted(visit.workers.items())}
    asked = (asyncio.to_thread(ask_worker, worker, url) for worker, url in urls.items())
    return list(await asyncio.gather(*asked))


def ask_worker(worker: str, status_url: str) -> WorkerLedger:
    """Return one worker's ledger; what goes wrong is in it."""
    address = urlsplit(status_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/debug/ledger")
        found = json.loads(connection.getresponse().read(MAX_BODY_BYTES))
        pool = {name: int(found["pool"].get(name, 0)) for name in _POOL}
        holds = [{name: each[name] for name in _HOLD} for each in found["holds"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        return WorkerLedger(worker, {}, [], f"{status_url} doesn't answer: {str(error) or type(error).__name__}")
    finally:
        connection.close()
    return WorkerLedger(worker, pool, holds)


def as_json(ledgers: Sequence[WorkerLedger]) -> str:
    """Return one object: each worker's ledger, and the sums."""
    workers = [{**asdict(each), "is_right": each.is_right} for each in ledgers]
    return json.dumps({"workers": workers, "sums": _sums(ledgers)}) + "\n"


def as_text(ledgers: Sequence[WorkerLedger]) -> str:
    """Return a table of pools, one of holds if there are any, and what is wrong."""
    if not ledgers:
        return "no worker was heard\n"
    sums = _sums(ledgers)
    pools = [[each.worker, *(each.pool.get(name, "?") for name in _POOL), _verdict(each)] for each in ledgers]
    pools.append(["sum", *sums.values(), ""])
    text = table(["worker", *_POOL, ""], pools)
    holds = [[each.worker, *(hold[name] for name in _HOLD)] for each in ledgers for hold in each.holds]
    text += "\n" + (table(["worker", "request", *_HOLD[1:]], holds) if holds else "no holds\n")
    return text + "".join(f"{each.worker}: {each.error}\n" for each in ledgers if each.error)


def _verdict(ledger: WorkerLedger) -> str:
    if ledger.error:
        return "no answer"
    return "" if ledger.is_right else "WRONG: free + cached + held + quarantined is not total"


def _sums(ledgers: Sequence[WorkerLedger]) -> dict[str, int]:
    return {name: sum(each.pool.get(name, 0) for each in ledgers) for name in _POOL}
