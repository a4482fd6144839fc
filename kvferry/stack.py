"""What `up` starts: settings in, child processes out. Starts nothing itself."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.cores import usable_cores
from gateway.settings import GatewaySettings
from kvferry.broker_access import ROLES, BrokerAccess
from kvferry.errors import UsageError
from kvferry.flags import new_parser, parse, read_checked
from kvferry.spawn import child_environment, module_command
from kvferry.supervisor import ChildSpec
from runtime import bus_address, redis_address, units
from runtime.settings import add_flags, setting, to_environment, to_flags, variables_of
from runtime.tls import TlsFiles
from runtime.worker_settings import NO_LIMIT, WorkerSettings

MAX_WORKERS = 64
"""In each pool of one machine."""

MAX_GATEWAYS = 16
MAX_PORT = 65535
BOTH = "both"
_SPLIT = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """What only `up` is told."""

    role: str = setting(
        units.one_of(_SPLIT, BOTH),
        _SPLIT,
        "split: prefill and decode workers apart; both: decode workers that compute prompts too. "
        "both saves memory and lets long prompts stall running streams",
    )
    prefill: int = setting(
        units.integer(1, MAX_WORKERS),
        1,
        "prefill workers. Each costs the model's memory and a share of the cores",
        metavar="N",
    )
    decode: int = setting(
        units.integer(1, MAX_WORKERS),
        1,
        "decode workers. Each costs the model's memory and a share of the cores",
        metavar="N",
    )
    gateways: int = setting(
        units.integer(1, MAX_GATEWAYS),
        1,
        "gateways, the first on --port, each further one on the next port. Each costs about 150 MB of memory",
        metavar="N",
    )
    max_workers: int = setting(
        units.integer(0, 2 * MAX_WORKERS),
        0,
        "workers, both pools together, that `kvferry scale` may go up to; memory and threads are divided by it. "
        "0 divides by what is started: scaling up then needs memory to spare (--kv-cache-memory-bytes). "
        "Raising it makes each worker's pool smaller",
        metavar="N",
    )
    nats_url: str = setting(
        bus_address.checked_url,
        "",
        "NATS server to use, with credentials that permit what any role needs; without it one is started (better in "
        "the variable or a file: command lines can be read by everyone on the host)",
        metavar="URL",
        secret=True,
    )
    redis_url: str = setting(
        redis_address.checked_url,
        "",
        "Redis or Valkey server to use; without it one is started (better in the variable or a file)",
        metavar="URL",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class Stack:
    """All settings of one `up`, shared ones alike in gateway and workers."""

    up: UpSettings
    gateway: GatewaySettings
    worker: WorkerSettings
    brokers: Mapping[str, BrokerAccess] = field(default_factory=dict)
    """By role; empty until they are there."""

    @property
    def num_prefill(self) -> int:
        """Prefill workers to start."""
        return 0 if self.up.role == BOTH else self.up.prefill

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers that `up` begins with, in the order of their start."""
        prefill = [f"prefill-{i + 1}" for i in range(self.num_prefill)]
        return [*prefill, *(f"decode-{i + 1}" for i in range(self.up.decode))]

    @property
    def gateways(self) -> dict[str, GatewaySettings]:
        """Each gateway's settings by its name: the first on --port, the others on the next ports."""
        numbers = range(self.up.gateways)
        return {f"gateway-{i + 1}": replace(self.gateway, port=self.gateway.port + i) for i in numbers}


_OWN_OF_UP = frozenset({"nats_url", "redis_url"})
_GIVEN_TO_WORKERS = frozenset({"host", "status_port", "worker_id", "host_workers"})
_GIVEN_TO_GATEWAY = frozenset({"gateway_id"})


def read_stack(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Stack:
    """Return the settings from `up`'s flags and the environment. Raises `UsageError`."""
    parser = new_parser("up", "Run the whole stack on this machine.")
    add_flags(parser, UpSettings, title="stack")
    add_flags(parser, GatewaySettings, skip=_GIVEN_TO_GATEWAY, title="model and gateway")
    add_flags(parser, WorkerSettings, skip=_GIVEN_TO_WORKERS, title="each worker")
    flags = parse(parser, argv)
    up = read_checked(UpSettings, flags, environ)
    gateway = read_checked(GatewaySettings, flags, environ, skip=_GIVEN_TO_GATEWAY | _OWN_OF_UP)
    worker = read_checked(WorkerSettings, flags, environ, skip=_GIVEN_TO_WORKERS | _OWN_OF_UP)
    if up.role == BOTH:
        refuse_with_both(up, worker)
        worker = replace(worker, local_prefill_tokens=NO_LIMIT)
    _refuse_tls_of_our_own("nats", up.nats_url, gateway.nats_tls)
    _refuse_tls_of_our_own("redis", up.redis_url, gateway.redis_tls)
    if gateway.port and gateway.port + up.gateways - 1 > MAX_PORT:
        raise UsageError(f"{up.gateways} gateways from port {gateway.port} on: there is no port above {MAX_PORT}")
    return Stack(up, gateway, replace(worker, host_workers=num_planned(up)))


def gateway_specs(stack: Stack, environ: Mapping[str, str] = os.environ) -> list[ChildSpec]:
    """Return the gateways."""
    return [_spec(stack, name, "--gateway-id", gateway, environ) for name, gateway in stack.gateways.items()]


def worker_spec(stack: Stack, name: str, environ: Mapping[str, str] = os.environ, *, num_workers: int = 0) -> ChildSpec:
    """Return one worker, which shares the host with ``num_workers`` in all if they are more than planned."""
    num_workers = max(num_workers, stack.worker.host_workers)
    worker = replace(stack.worker, host_workers=num_workers)
    num_threads = worker.num_threads or max(1, usable_cores() // num_workers)  # to begin with, if there is a cores file
    if not worker.cores_file and num_workers > 1:
        worker = replace(worker, num_threads=num_threads)
    return _spec(stack, name, "--worker-id", worker, {**environ, "OMP_NUM_THREADS": str(num_threads)})


def broker_access(stack: Stack, nats: Mapping[str, str], redis: Mapping[str, str]) -> dict[str, BrokerAccess]:
    """Return what each role needs, given the addresses of all."""
    tls = stack.worker.nats_tls, stack.worker.redis_tls
    return {role: BrokerAccess(nats[role], redis[role], *tls) for role in ROLES}


def _spec(
    stack: Stack,
    name: str,
    name_flag: str,
    settings: GatewaySettings | WorkerSettings,
    environ: Mapping[str, str],
) -> ChildSpec:
    """Return one child: its settings in flags, its secrets in the environment, its name last."""
    command, _ = name.rsplit("-", 1)
    if access := stack.brokers.get(command):
        settings = replace(settings, nats_url=access.nats_url, redis_url=access.redis_url)
    inherited = {key: value for key, value in environ.items() if key not in _variables()}
    return ChildSpec(
        name=name,
        command=(*module_command("kvferry"), command, *to_flags(settings), name_flag, name),
        environment=child_environment({**inherited, **to_environment(settings)}),
    )


def _variables() -> frozenset[str]:
    """Return the variables that set something: the child has been told by `up` already."""
    return variables_of(UpSettings) | variables_of(GatewaySettings) | variables_of(WorkerSettings)


def num_planned(up: UpSettings) -> int:
    """Return how many workers the host is divided by. Raises `UsageError` if that is less than asked for."""
    num_workers = up.decode + (0 if up.role == BOTH else up.prefill)
    if up.max_workers and up.max_workers < num_workers:
        raise UsageError(f"--max-workers {up.max_workers} is less than the {num_workers} workers to start")
    return max(num_workers, up.max_workers)


def _refuse_tls_of_our_own(broker: str, url: str, files: TlsFiles) -> None:
    if files.given and not url:
        raise UsageError(
            f"--{broker}-tls-… needs --{broker}-url: the one that `up` starts itself listens on loopback, without TLS"
        )


def refuse_with_both(up: UpSettings, worker: WorkerSettings) -> None:
    """Raise `UsageError` for what was said of prefill workers, though `both` has none."""
    if up.prefill != UpSettings().prefill:
        raise UsageError("--prefill has no meaning with --role both, which has decode workers only")
    if worker.local_prefill_tokens not in (WorkerSettings().local_prefill_tokens, NO_LIMIT):
        raise UsageError("--local-prefill-tokens has no meaning with --role both: there is no limit")
