"""The settings that every service has."""

from dataclasses import dataclass
from typing import Literal

from runtime import bus_address, redis_address, units
from runtime.broker_settings import BrokerTlsSettings
from runtime.settings import setting

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_MODEL_LEN = 1 << 24
"""A bound on what may be asked for; the model's own length is the real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings(BrokerTlsSettings):
    """What gateway and workers are told alike.

    When a service's `run` gets them, `model` is a checked local folder and `served_model_name`
    is set: the command line has seen to both.
    """

    model: str = setting(
        units.text,
        "",
        "local Hugging Face folder or hub id; without it the bundled SmolLM2-135M-Instruct. "
        "A bigger model costs memory and time in proportion",
    )
    served_model_name: str = setting(
        units.text,
        "",
        "name under which clients ask for the model; default: what --model says",
        metavar="NAME",
    )
    max_model_len: int | Literal["auto"] | None = setting(
        units.integer_or("auto", 1, MAX_MODEL_LEN, alias="-1"),
        None,
        "longest prompt plus output, in tokens; default: the model's. auto: the longest of which each worker's "
        "pool holds --auto-concurrency at once. Raising it lets one request hold more of the KV pool, so fewer "
        "run at once",
        metavar="TOKENS",
    )
    nats_url: str = setting(
        bus_address.checked_url,
        "nats://127.0.0.1:4222",
        "NATS server, with credentials if it wants them (better in the variable or a file: command lines "
        "can be read by everyone on the host); tls:// encrypts the line",
        metavar="URL",
        secret=True,
    )
    redis_url: str = setting(
        redis_address.checked_url,
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey server, with credentials if it wants them (better in the variable or a file); rediss:// "
        "encrypts the line",
        metavar="URL",
        secret=True,
    )
    log_level: str = setting(
        units.one_of(*LOG_LEVELS),
        "info",
        "debug, info, warning or error; debug logs each message and slows the service",
        metavar="LEVEL",
    )

    @property
    def fixed_model_len(self) -> int | None:
        """`max_model_len` where it is a number; None if model or memory decide."""
        return self.max_model_len if isinstance(self.max_model_len, int) else None
