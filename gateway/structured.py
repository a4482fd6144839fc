"""Structured output of a request: its grammar, known to be one that workers can follow."""

from gateway.errors import GatewayError
from gateway.grammars.asked import StructuredFields, grammar_of, refused
from gateway.grammars.checking import CheckBusy
from gateway.grammars.errors import GrammarRefused
from gateway.services import Services


async def checked_grammar(fields: StructuredFields, services: Services) -> str:
    """The grammar that the output follows, "" for any.

    Raises ``GatewayError`` (400) that names what isn't supported.
    """
    param, grammar = grammar_of(fields)
    if grammar:
        try:
            await services.grammars.check(grammar)
        except GrammarRefused as error:
            raise refused(param, error) from error
        except CheckBusy as error:
            raise too_busy() from error
    return grammar


def too_busy() -> GatewayError:
    """Too many grammars at once: their requests may come again."""
    text = "Too many schemas wait to be checked; try again"
    return GatewayError(429, text, type="rate_limit_error", code="queue_full")
