"""The settings that every service has."""

from dataclasses import dataclass

from runtime import units
from runtime.settings import setting

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_MODEL_LEN = 1 << 24
"""A bound on what may be asked for; the model's own length is the real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
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
    max_model_len: int | None = setting(
        units.integer(1, MAX_MODEL_LEN),
        None,
        "longest prompt plus output, in tokens; default: the model's. Raising it lets one "
        "request hold more of the KV pool, so fewer run at once",
        metavar="TOKENS",
    )
    nats_url: str = setting(
        units.text,
        "nats://127.0.0.1:4222",
        "NATS server, with credentials if it wants them (better in the variable: command lines "
        "can be read by everyone on the host)",
        metavar="URL",
        secret=True,
    )
    redis_url: str = setting(
        units.text,
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey server, with credentials if it wants them (better in the variable)",
        metavar="URL",
        secret=True,
    )
    log_level: str = setting(
        units.one_of(*LOG_LEVELS),
        "info",
        "debug, info, warning or error; debug logs each message and slows the service",
        metavar="LEVEL",
    )
