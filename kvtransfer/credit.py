"""How many bytes senders may have on the way to one receiver."""

from __future__ import annotations

from dataclasses import dataclass

from kvtransfer.pieces import TARGET_PIECE_BYTES

OPEN_CREDIT_BYTES = 16 << 20
"""A quarter of the smaller of the client's pending limit and the server's max_pending, 64 MiB by default each."""
TRANSFER_CREDIT_BYTES = 4 << 20
"""One transfer's share while there is enough for all: some 4 ms of a 1 GB/s link."""


@dataclass(slots=True)
class _Account:
    landed: int = 0
    credit: int = 0


class CreditPool:
    """Absolute credits of all open transfers; what is open never exceeds the total."""

    def __init__(self, total_bytes: int = OPEN_CREDIT_BYTES, share_bytes: int = TRANSFER_CREDIT_BYTES) -> None:
        """``share_bytes`` bounds one transfer; each may have one piece on the way at least."""
        self._total = total_bytes
        self._share = share_bytes
        self._accounts: dict[str, _Account] = {}

    @property
    def open_bytes(self) -> int:
        """Bytes that may be on the way now."""
        return sum(account.credit - account.landed for account in self._accounts.values())

    def open(self, transfer_id: str) -> int:
        """The first credit of a transfer; 0 when others use it all, until ``extend``."""
        self._accounts[transfer_id] = _Account()
        return self.extend(transfer_id)

    def landed(self, transfer_id: str, num_bytes: int) -> None:
        """``num_bytes`` more have landed."""
        account = self._accounts[transfer_id]
        account.landed = min(account.landed + num_bytes, account.credit)

    def extend(self, transfer_id: str) -> int:
        """The absolute credit now, raised as far as the share and the total allow."""
        account = self._accounts[transfer_id]
        share = max(TARGET_PIECE_BYTES, min(self._share, self._total // len(self._accounts)))
        wanted = account.landed + share - account.credit
        account.credit += max(0, min(wanted, self._total - self.open_bytes))
        return account.credit

    def close(self, transfer_id: str) -> None:
        """The transfer is over; its credit is free. Idempotent."""
        self._accounts.pop(transfer_id, None)
