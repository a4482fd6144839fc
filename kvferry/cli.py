"""The command `kvferry`: finds the sub-command, reports errors in one line, imports little."""

import sys
from collections.abc import Callable, Sequence

from kvferry import __version__
from kvferry.errors import StartError, UsageError
from kvferry.signals import INTERRUPTED
from kvferry.tether import tie_if_asked

Command = Callable[[Sequence[str]], int]

_HELP = """\
usage: kvferry COMMAND [flags]

Serves language models from separate pools of prefill and decode workers.

commands:
  up        the whole stack on this machine, brokers included
  gateway   the HTTP front: OpenAI's API in, tokens out
  prefill   one prefill worker
  decode    one decode worker
  fetch     download or convert a model before it is needed
  secrets   make the brokers' credentials for a deployment
  key       make, list and remove API keys, with limits
  plan      what fits into a memory, and what each setting does, before anything is loaded

  ledger    every hold on every worker of a running stack, and whether the pools' sums are right
  cancel    end a request
  scale     change the number of workers of a running `up`
  restart   replace every worker of a running `up`, one at a time
  bench     measure servers under load: times to first token, gaps, throughput
  version   print the version

`kvferry COMMAND --help` lists a command's flags, each with its environment variable.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (2: what was asked for can't be)."""
    words = list(sys.argv[1:] if argv is None else argv)
    tie_if_asked()
    name = words[0] if words else "--help"
    if name in {"--help", "-h", "help"}:
        sys.stdout.write(_HELP)
        return 0
    try:
        return _command(name)(words[1:])
    except StartError as error:
        prefix = f"kvferry {name}" if name in _COMMANDS else "kvferry"
        sys.stderr.write(f"{prefix}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(name: str) -> Command:
    if name not in _COMMANDS:
        known = ", ".join(command for command in _COMMANDS if command not in _HIDDEN)
        raise UsageError(f"unknown command {name!r:.80}; there are {known}")
    return _COMMANDS[name]


def _up(argv: Sequence[str]) -> int:
    from kvferry.up import run_up

    return run_up(argv)


def _gateway(argv: Sequence[str]) -> int:
    from kvferry.services import run_gateway

    return run_gateway(argv)


def _prefill(argv: Sequence[str]) -> int:
    from kvferry.services import run_prefill

    return run_prefill(argv)


def _decode(argv: Sequence[str]) -> int:
    from kvferry.services import run_decode

    return run_decode(argv)


def _fetch(argv: Sequence[str]) -> int:
    from kvferry.fetch import run_fetch

    return run_fetch(argv)


def _secrets(argv: Sequence[str]) -> int:
    from kvferry.secrets import run_secrets

    return run_secrets(argv)


def _key(argv: Sequence[str]) -> int:
    from kvferry.key import run_key

    return run_key(argv)


def _plan(argv: Sequence[str]) -> int:
    from kvferry.plan.command import run_plan

    return run_plan(argv)


def _ledger(argv: Sequence[str]) -> int:
    from kvferry.ledger import run_ledger

    return run_ledger(argv)


def _cancel(argv: Sequence[str]) -> int:
    from kvferry.cancel import run_cancel

    return run_cancel(argv)


def _scale(argv: Sequence[str]) -> int:
    from kvferry.change import run_scale

    return run_scale(argv)


def _restart(argv: Sequence[str]) -> int:
    from kvferry.change import run_restart

    return run_restart(argv)


def _bench(argv: Sequence[str]) -> int:
    from kvferry.bench import run_bench

    return run_bench(argv)


def _engine(argv: Sequence[str]) -> int:
    from kvferry.services import run_engine

    return run_engine(argv)


def _gateway_worker(argv: Sequence[str]) -> int:
    from kvferry.services import run_gateway_worker

    return run_gateway_worker(argv)


def _version(argv: Sequence[str]) -> int:
    if argv:
        raise UsageError(f"unexpected argument {argv[0]!r:.80}")
    sys.stdout.write(f"kvferry {__version__}\n")
    return 0


_COMMANDS: dict[str, Command] = {
    "up": _up,
    "gateway": _gateway,
    "prefill": _prefill,
    "decode": _decode,
    "fetch": _fetch,
    "secrets": _secrets,
    "key": _key,
    "plan": _plan,
    "ledger": _ledger,
    "cancel": _cancel,
    "scale": _scale,
    "restart": _restart,
    "bench": _bench,
    "engine": _engine,
    "gateway-worker": _gateway_worker,
    "version": _version,
    "--version": _version,
}
_HIDDEN = frozenset({"engine", "gateway-worker", "--version"})
