"""The settings by which a line to NATS or Redis is encrypted."""

from dataclasses import dataclass
from pathlib import Path

from runtime import units
from runtime.settings import setting
from runtime.tls import TlsFiles


def _file(value: str) -> str:
    """Take the path of a file that can be read; relative ones count from here."""
    path = Path(units.text(value)).absolute()
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"can't be read ({error.strerror})") from None
    return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTlsSettings:
    """PEM files; with any of them, nothing goes to that broker in the clear."""

    nats_tls_ca: str = setting(
        _file,
        "",
        "PEM file of the one CA that NATS's certificate must come from; the line is encrypted then, whatever "
        "--nats-url begins with. Default with tls:// there: the system's CAs",
        metavar="FILE",
    )
    nats_tls_cert: str = setting(
        _file,
        "",
        "PEM file of the certificate with which this process shows NATS who it is (mutual TLS)",
        metavar="FILE",
    )
    nats_tls_key: str = setting(
        _file,
        "",
        "PEM file of the key to --nats-tls-cert, where that file doesn't hold it. It must not be encrypted",
        metavar="FILE",
    )
    redis_tls_ca: str = setting(
        _file,
        "",
        "PEM file of the one CA that the certificate of Redis or Valkey must come from; the line is encrypted then, "
        "whatever --redis-url begins with. Default with rediss:// there: the system's CAs",
        metavar="FILE",
    )
    redis_tls_cert: str = setting(
        _file,
        "",
        "PEM file of the certificate with which this process shows Redis or Valkey who it is (mutual TLS)",
        metavar="FILE",
    )
    redis_tls_key: str = setting(
        _file,
        "",
        "PEM file of the key to --redis-tls-cert, where that file doesn't hold it. It must not be encrypted",
        metavar="FILE",
    )

    @property
    def nats_tls(self) -> TlsFiles:
        """Files for the bus."""
        return TlsFiles(self.nats_tls_ca, self.nats_tls_cert, self.nats_tls_key)

    @property
    def redis_tls(self) -> TlsFiles:
        """Files for the store."""
        return TlsFiles(self.redis_tls_ca, self.redis_tls_cert, self.redis_tls_key)
