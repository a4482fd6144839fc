"""The command line's flags: parsed into settings, or refused in one line."""

import argparse
import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from kvferry.errors import UsageError
from kvferry.not_built import feature_of
from runtime.settings import SettingsError, add_flags, read

T = TypeVar("T")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, raised."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def new_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of one sub-command, without settings yet."""
    return _Parser(
        prog=f"kvferry {command}",
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse flags, with `-` or `_` in their names. Raises `UsageError` on what isn't known."""
    flags, rest = parser.parse_known_args([_dashed(word) for word in argv])
    if rest:
        raise UsageError(_complaint(parser, rest))
    return flags


def read_settings(
    settings: type[T],
    command: str,
    description: str,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> T:
    """Return one service's settings from its flags and the environment."""
    parser = new_parser(command, description)
    add_flags(parser, settings)
    return read_checked(settings, parse(parser, argv), environ)


def read_checked(
    settings: type[T],
    flags: argparse.Namespace,
    environ: Mapping[str, str] = os.environ,
    **options: Any,
) -> T:
    """Return settings as `runtime.settings.read` does, with the command line's kind of error."""
    try:
        return read(settings, flags, environ, **options)
    except SettingsError as error:
        raise UsageError(str(error)) from None


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _complaint(parser: argparse.ArgumentParser, rest: Sequence[str]) -> str:
    flags = [word.split("=", 1)[0] for word in rest if word.startswith("-") and len(word) > 1]
    for flag in flags:
        if feature := feature_of(flag):
            return f"{flag} is not built yet ({feature})"
    if not flags:
        return f"unexpected argument {rest[0]!r:.80} (every setting is a flag; see --help)"
    known = [option for action in parser._actions for option in action.option_strings]
    nearest = difflib.get_close_matches(flags[0], known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else " (see --help)"
    return f"unknown flag {flags[0]:.80}{hint}"
