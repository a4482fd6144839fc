"""Grammars of which one stands beside another, or behind what a model says to itself."""

import json
from collections.abc import Mapping

from gateway.grammars.building import bounded, literal


def either(*grammars: str) -> str:
    """A text of one of ``grammars``."""
    names = [f"part_{number}" for number in range(len(grammars))]
    return _nested("start: " + " | ".join(f"@{name}" for name in names), dict(zip(names, grammars, strict=True)))


def behind_reasoning(grammar: str, markers: tuple[str, str], special: Mapping[str, int], *, starts_inside: bool) -> str:
    """A text of ``grammar`` behind one of any words that ends in the second of ``markers``.

    Unless it ``starts_inside`` such words, they begin with the first one, or aren't there at all. ``special``: ids of
    markers that are tokens of their own.
    """
    begin, end = markers
    words = f"/(?s:.*)/ <[{special[end]}]>" if end in special else "ended_words"
    rules = [
        f"start: {'thought' if starts_inside else f'({_mark(begin, special)} thought)?'} @answer",
        f"thought: {words} /\\n*/",
        f"ended_words[suffix={literal(end)}]: /(?s:.*)/",
    ]
    return _nested("\n".join(rules), {"answer": grammar})


def _mark(text: str, special: Mapping[str, int]) -> str:
    return f"<[{special[text]}]>" if text in special else literal(text)


def _nested(lark: str, parts: Mapping[str, str]) -> str:
    grammars: list[dict[str, object]] = [{"lark_grammar": lark}]
    for name, grammar in parts.items():
        first, *others = _listed(grammar)
        grammars += [{**first, "name": name}, *others]
    return bounded(json.dumps({"grammars": grammars}))


def _listed(grammar: str) -> list[dict[str, object]]:
    """A grammar as the list that the library's JSON has; what isn't JSON is Lark."""
    if not grammar.startswith('{"grammars"'):
        return [{"lark_grammar": grammar}]
    listed: list[dict[str, object]] = json.loads(grammar)["grammars"]
    return listed
