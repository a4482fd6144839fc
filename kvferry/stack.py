"""What `up` starts: settings in, child processes out. Starts nothing itself."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.settings import GatewaySettings
from kvferry.cores import usable_cores
from kvferry.errors import UsageError
from kvferry.flags import new_parser, parse, read_checked
from kvferry.spawn import child_environment, module_command
from kvferry.supervisor import ChildSpec
from runtime import units
from runtime.settings import add_flags, described, setting, to_environment, to_flags, variable_of
from runtime.worker_settings import NO_LIMIT, WorkerSettings

MAX_WORKERS = 64
BOTH = "both"
_SPLIT = "split"

GATEWAY_NAME = "gateway-1"


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
    nats_url: str = setting(
        units.text,
        "",
        "NATS server to use; without it one is started (better in the variable: command lines can "
        "be read by everyone on the host)",
        metavar="URL",
        secret=True,
    )
    redis_url: str = setting(
        units.text,
        "",
        "Redis or Valkey server to use; without it one is started (better in the variable)",
        metavar="URL",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class Stack:
    """All settings of one `up`, shared ones alike in gateway and workers."""

    up: UpSettings
    gateway: GatewaySettings
    worker: WorkerSettings

    @property
    def num_prefill(self) -> int:
        """Prefill workers to start."""
        return 0 if self.up.role == BOTH else self.up.prefill

    @property
    def worker_names(self) -> list[str]:
        """Names of all workers, in the order of their start."""
        prefill = [f"prefill-{i + 1}" for i in range(self.num_prefill)]
        return [*prefill, *(f"decode-{i + 1}" for i in range(self.up.decode))]


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
        _refuse_with_both(up, worker)
        worker = replace(worker, local_prefill_tokens=NO_LIMIT)
    return Stack(up, gateway, _share_host(up, worker, usable_cores()))


def child_specs(stack: Stack, environ: Mapping[str, str] = os.environ) -> list[ChildSpec]:
    """Return the workers, then the gateway, ready to be started with these (complete) settings."""
    num_threads = stack.worker.num_threads
    threads = {"OMP_NUM_THREADS": str(num_threads)} if num_threads else {}
    workers = [_spec(name, "--worker-id", stack.worker, {**environ, **threads}) for name in stack.worker_names]
    return [*workers, _spec(GATEWAY_NAME, "--gateway-id", stack.gateway, environ)]


def with_brokers(stack: Stack, nats_url: str, redis_url: str) -> Stack:
    """Return the stack with gateway and workers told where the brokers are."""
    return replace(
        stack,
        gateway=replace(stack.gateway, nats_url=nats_url, redis_url=redis_url),
        worker=replace(stack.worker, nats_url=nats_url, redis_url=redis_url),
    )


def _spec(
    name: str,
    name_flag: str,
    settings: GatewaySettings | WorkerSettings,
    environ: Mapping[str, str],
) -> ChildSpec:
    """Return one child: its settings in flags, its secrets in the environment, its name last."""
    command, _ = name.rsplit("-", 1)
    inherited = {key: value for key, value in environ.items() if key not in _variables()}
    return ChildSpec(
        name=name,
        command=(*module_command("kvferry"), command, *to_flags(settings), name_flag, name),
        environment=child_environment({**inherited, **to_environment(settings)}),
    )


def _variables() -> set[str]:
    """Return the variables that set something: the child has been told by `up` already."""
    return {
        variable_of(field.name)
        for settings in (UpSettings, GatewaySettings, WorkerSettings)
        for field, _ in described(settings)
    }


def _share_host(up: UpSettings, worker: WorkerSettings, cores: int) -> WorkerSettings:
    num_workers = up.decode + (0 if up.role == BOTH else up.prefill)
    worker = replace(worker, host_workers=num_workers)
    if worker.num_threads or num_workers == 1:
        return worker
    return replace(worker, num_threads=max(1, cores // num_workers))


def _refuse_with_both(up: UpSettings, worker: WorkerSettings) -> None:
    if up.prefill != UpSettings().prefill:
        raise UsageError("--prefill has no meaning with --role both, which has decode workers only")
    if worker.local_prefill_tokens not in (WorkerSettings().local_prefill_tokens, NO_LIMIT):
        raise UsageError("--local-prefill-tokens has no meaning with --role both: there is no limit")
