"""Why a grammar can't be followed, in words for the client."""


class GrammarRefused(Exception):  # noqa: N818 - it says what happened
    """One line that names the keyword, or the place, at fault."""
