"""Settings: one frozen dataclass per service, each field a flag and an environment variable.

A field made with `setting` carries its flag, its help line and its parser. Precedence: flag, then
the variable ``KVFERRY_<FIELD NAME>``, then the file that ``KVFERRY_<FIELD NAME>_FILE`` names, then
the default. Read once, in main.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

VARIABLE_PREFIX = "KVFERRY_"
FILE_SUFFIX = "_FILE"
MAX_FILE_CHARS = 16 << 10
"""A value is one line: an address, a number, a few hundred keys."""

_METADATA_KEY = "kvferry_setting"

T = TypeVar("T")
Parser = Callable[[str], Any]


class SettingsError(ValueError):
    """A value that can't be: the text is the one line that the user reads. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field's metadata says."""

    parse: Parser
    help: str
    metavar: str = "VALUE"
    secret: bool = False
    """Never put on a command line that we build, since command lines are world-readable, nor in a repr."""
    repeat: bool = False
    """May be given several times; the values are joined with commas before parsing."""


def setting(
    parse: Parser,
    default: Any,
    help_line: str,
    *,
    metavar: str = "VALUE",
    secret: bool = False,
    repeat: bool = False,
) -> Any:
    """Return a dataclass field that is a setting. `help_line` says what raising it costs."""
    about = Setting(parse, help_line, metavar, secret, repeat)
    return dataclasses.field(default=default, repr=not secret, metadata={_METADATA_KEY: about})


def described(settings: type[Any]) -> list[tuple[dataclasses.Field[Any], Setting]]:
    """Return the fields of a settings class that are settings, in order."""
    fields = dataclasses.fields(settings)
    return [(f, f.metadata[_METADATA_KEY]) for f in fields if _METADATA_KEY in f.metadata]


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return VARIABLE_PREFIX + name.upper()


def variables_of(settings: type[Any]) -> frozenset[str]:
    """Return all variables that set something of a settings class, those that name a file included."""
    names = [variable_of(field.name) for field, _ in described(settings)]
    return frozenset([*names, *(name + FILE_SUFFIX for name in names)])


def add_flags(
    parser: argparse.ArgumentParser,
    settings: type[Any],
    *,
    skip: frozenset[str] = frozenset(),
    title: str = "settings",
) -> None:
    """Add the flags of a settings class to `parser`, which must have argument_default=SUPPRESS.

    A flag that is there already (two classes share it) is not added twice.
    """
    group = parser.add_argument_group(title)
    taken = parser._option_string_actions
    for field, about in described(settings):
        flag = flag_of(field.name)
        if field.name in skip or flag in taken:
            continue
        kwargs: dict[str, Any] = {"dest": field.name, "help": _help(field, about)}
        if about.parse is parse_bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **kwargs)
        elif about.repeat:
            group.add_argument(flag, action="append", metavar=about.metavar, **kwargs)
        else:
            group.add_argument(flag, metavar=about.metavar, **kwargs)


def read(
    settings: type[T],
    flags: argparse.Namespace,
    environ: Mapping[str, str] = os.environ,
    *,
    skip: frozenset[str] = frozenset(),
) -> T:
    """Return the settings from parsed flags and the environment. Raises `SettingsError`."""
    values: dict[str, Any] = {}
    own = {variable_of(field.name) for field, _ in described(settings)}
    for field, about in described(settings):
        if field.name in skip:
            continue
        variable = variable_of(field.name)
        in_file = variable + FILE_SUFFIX
        given = getattr(flags, field.name, None)
        if given is not None:
            values[field.name] = _value(about, given, flag_of(field.name))
        elif (text := environ.get(variable, "")) != "":
            values[field.name] = _value(about, text, variable)
        elif (path := environ.get(in_file, "")) != "" and in_file not in own:  # else a setting of that very name
            values[field.name] = _value(about, _content(path, in_file), in_file)
    return settings(**values)


def to_flags(settings: Any) -> list[str]:
    """Return the flags that make these settings again: all but defaults and secrets."""
    flags: list[str] = []
    for field, about in described(type(settings)):
        value = getattr(settings, field.name)
        if about.secret or value == field.default:
            continue
        flag = flag_of(field.name)
        if isinstance(value, bool):
            flags.append(flag if value else "--no-" + flag[2:])
        else:
            flags.append(f"{flag}={_text(value)}")
    return flags


def to_environment(settings: Any) -> dict[str, str]:
    """Return the variables that carry the secrets among these settings."""
    values = {
        variable_of(field.name): _text(getattr(settings, field.name))
        for field, about in described(type(settings))
        if about.secret
    }
    return {name: value for name, value in values.items() if value}


def _content(path: str, source: str) -> str:
    """Return the one line of a file. What can't be is said without repeating any of it."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no path
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"{source}: {path[:200]!r} can't be read ({reason})") from None
    if len(text) > MAX_FILE_CHARS:
        raise SettingsError(f"{source}: {path[:200]!r} is longer than {MAX_FILE_CHARS} characters")
    text = text.strip()
    if not text or "\n" in text:
        raise SettingsError(f"{source}: {path[:200]!r} must hold one line, the value")
    return text


def _value(about: Setting, given: Any, source: str) -> Any:
    if isinstance(given, bool):
        return given
    text = ",".join(given) if isinstance(given, list) else given
    try:
        return about.parse(text)
    except ValueError as error:
        shown = "" if about.secret else f" {text[:80]!r}"
        raise SettingsError(f"{source}:{shown} {error}") from None


def _help(field: dataclasses.Field[Any], about: Setting) -> str:
    default = _text(field.default)
    shown = f"default {default}; " if default else ""
    text = f"{about.help} [{shown}{variable_of(field.name)}]"
    return text.replace("%", "%%")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def parse_bool(text: str) -> bool:
    """Read yes or no."""
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise ValueError("is neither true nor false")
