"""`kvferry secrets FOLDER`: credentials for the brokers of a deployment, made once and kept."""

import re
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvferry.broker_access import ROLES
from kvferry.errors import UsageError
from kvferry.flags import new_parser, parse, read_checked
from kvferry.secrets_files import private, read_line, write_private
from kvferry.secrets_nats import nats_config
from kvferry.secrets_redis import redis_users
from runtime import units
from runtime.settings import add_flags, parse_bool, setting

PASSWORD_BYTES = 24
"""192 random bits."""

NATS_FILE = Path("nats", "nats.conf")
REDIS_FILE = Path("redis", "users.acl")
NATS_URL = "nats-url"
REDIS_URL = "redis-url"
_PORT = units.integer(1, 65535)
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def _host(value: str) -> str:
    text = value.strip()
    if not _HOST.fullmatch(text):
        raise ValueError("is no host name or address (one of IPv6 stands in brackets)")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsSettings:
    """Where the brokers of the deployment will be."""

    nats_host: str = setting(_host, "nats", "host name of NATS, as services reach it", metavar="HOST")
    nats_port: int = setting(_PORT, 4222, "its port", metavar="PORT")
    redis_host: str = setting(_host, "redis", "host name of Redis or Valkey, as services reach it", metavar="HOST")
    redis_port: int = setting(_PORT, 6379, "its port", metavar="PORT")
    renew: bool = setting(
        parse_bool, False, "make everything anew. Brokers and services have to be restarted then, brokers first"
    )


def run_secrets(argv: Sequence[str]) -> int:
    """Make what is missing; return 0. Raises `UsageError`."""
    about = (
        "Make the brokers' configuration with a user for each role, and each role's addresses with its password. "
        "What is there already is kept, so that this may run before every start."
    )
    parser = new_parser("secrets", about)
    add_flags(parser, SecretsSettings)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where; each folder in it is for one service alone")
    flags = parse(parser, argv)
    made = make_secrets(flags.folder, read_checked(SecretsSettings, flags))
    lines = [f"made {path}" for path in made] or [f"all is there already in {flags.folder}"]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def new_password() -> str:
    """Return one that needs no escaping anywhere."""
    return secrets.token_hex(PASSWORD_BYTES)


def make_secrets(folder: Path, settings: SecretsSettings) -> list[Path]:
    """Make what is missing, or with `renew` everything; return the files that were written.

    The roles' addresses come first and the broker's own file last: a run that was killed is completed by the
    next one from the passwords that are in the addresses. The broker's file may be edited; it is never touched again.

    Raises:
        UsageError: a folder is somebody else's, or a role's address is lost while its broker knows the password.

    """
    if not folder.exists():
        private(folder)
    for name in (*ROLES, NATS_FILE.parts[0], REDIS_FILE.parts[0]):
        private(folder / name)
    nats_at = f"{settings.nats_host}:{settings.nats_port}"
    redis_at = f"{settings.redis_host}:{settings.redis_port}"
    made = _make(
        folder,
        NATS_FILE,
        NATS_URL,
        settings.renew,
        lambda role, password: f"nats://{role}:{password}@{nats_at}",
        lambda passwords: nats_config(f"0.0.0.0:{settings.nats_port}", passwords),
    )
    made += _make(
        folder,
        REDIS_FILE,
        REDIS_URL,
        settings.renew,
        lambda role, password: f"redis://{role}:{password}@{redis_at}/0",
        redis_users,
    )
    return made


def _make(
    folder: Path,
    broker_file: Path,
    url_name: str,
    renew: bool,
    url: Callable[[str, str], str],
    config: Callable[[dict[str, str]], str],
) -> list[Path]:
    """One broker's files."""
    target = folder / broker_file
    made: list[Path] = []
    passwords: dict[str, str] = {}
    if renew:
        target.unlink(missing_ok=True)  # first, so that no run after a kill takes new addresses for the old file's
    for role in ROLES:
        path = folder / role / url_name
        if path.exists() and not renew:
            passwords[role] = _password_in(path)
        elif target.exists():
            raise UsageError(f"{path} is lost, and {target} is there: make all anew with --renew")
        else:
            passwords[role] = new_password()
            write_private(path, f"{url(role, passwords[role])}\n")
            made.append(path)
    if not target.exists():
        write_private(target, config(passwords))
        made.append(target)
    return made


def _password_in(path: Path) -> str:
    try:
        password = urlsplit(read_line(path)).password or ""
    except ValueError:
        password = ""
    if not password.isalnum():
        raise UsageError(f"{path} is none of ours: make all anew with --renew")
    return password
