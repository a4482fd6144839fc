"""How many bytes senders may have on the way to one receiver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtransfer.pieces import TARGET_PIECE_BYTES

OPEN_CREDIT_BYTES = 16 << 20
"""A quarter of the smaller of the client's pending limit and the server's max_pending, 64 MiB by default each."""
TRANSFER_CREDIT_BYTES = 4 << 20
"""One transfer's share while there is enough for all: some 4 ms of a 1 GB/s link."""


FIRST_PART = 8
"""A transfer begins with an eighth of an equal share, or one piece: its prompt may be far from being computed."""


@dataclass(slots=True)
class _Account:
    on_credit: Callable[[], None]
    landed: int = 0
    credit: int = 0


class CreditPool:
    """Absolute credits of all open transfers; what is open never exceeds the total."""

    def __init__(self, total_bytes: int = OPEN_CREDIT_BYTES, share_bytes: int = TRANSFER_CREDIT_BYTES) -> None:
        """``share_bytes`` bounds what one transfer may have on the way."""
        self._total = total_bytes
        self._share = share_bytes
        self._accounts: dict[str, _Account] = {}
        self._waiting: dict[str, None] = {}  # have less than a piece, in the order of their asking

    @property
    def open_bytes(self) -> int:
        """Bytes that may be on the way now."""
        return sum(account.credit - account.landed for account in self._accounts.values())

    def open(self, transfer_id: str, on_credit: Callable[[], None]) -> int:
        """The first credit of a transfer; it grows as pieces land.

        When there was too little left for a piece, here or later, and there is enough again, ``on_credit`` is called,
        which is the time to ``extend``.
        """
        self._accounts[transfer_id] = _Account(on_credit)
        return self._raise(transfer_id, self._total // (FIRST_PART * len(self._accounts)))

    def landed(self, transfer_id: str, num_bytes: int) -> None:
        """``num_bytes`` more have landed."""
        account = self._accounts[transfer_id]
        account.landed = min(account.landed + num_bytes, account.credit)
        self._wake()

    def extend(self, transfer_id: str) -> int:
        """The absolute credit now, raised as far as the share and the total allow."""
        return self._raise(transfer_id, self._total // len(self._accounts))

    def close(self, transfer_id: str) -> None:
        """The transfer is over; its credit is free. Idempotent."""
        self._waiting.pop(transfer_id, None)
        if self._accounts.pop(transfer_id, None) is not None:
            self._wake()

    def _raise(self, transfer_id: str, share: int) -> int:
        account = self._accounts[transfer_id]
        wanted = account.landed + max(TARGET_PIECE_BYTES, min(self._share, share)) - account.credit
        account.credit += max(0, min(wanted, self._total - self.open_bytes))
        if account.credit - account.landed < TARGET_PIECE_BYTES:
            self._waiting[transfer_id] = None
        else:
            self._waiting.pop(transfer_id, None)
        return account.credit

    def _wake(self) -> None:
        """One that waits, if there is a piece's worth for it."""
        if self._waiting and self._total - self.open_bytes >= TARGET_PIECE_BYTES:
            transfer_id = next(iter(self._waiting))
            del self._waiting[transfer_id]
            self._accounts[transfer_id].on_credit()
