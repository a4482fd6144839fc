"""What one role needs to reach the brokers: addresses with its own credentials, and files for TLS."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol import subjects
from runtime.tls import NO_TLS_FILES, TlsFiles

OPERATOR = "operator"
ROLES = (*subjects.ROLES, OPERATOR)
"""Who has credentials of its own: the services, and a person's `kvferry cancel` or `ledger`."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """For one role. Both addresses hold a password."""

    nats_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    nats_tls: TlsFiles = NO_TLS_FILES
    redis_tls: TlsFiles = NO_TLS_FILES

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "BrokerAccess":
        """Read what `dataclasses.asdict` made of it. Raises KeyError or TypeError for anything else."""
        return cls(
            str(found["nats_url"]),
            str(found["redis_url"]),
            TlsFiles(**found["nats_tls"]),
            TlsFiles(**found["redis_tls"]),
        )
