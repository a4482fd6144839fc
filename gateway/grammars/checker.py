"""A process that checks grammars, one a line: some take seconds or hundreds of megabytes, and a process can be ended.

Reads JSON texts from standard input, answers each with what is wrong with it, "" if nothing is.
"""

import json
import resource
import sys

from llguidance import LLMatcher, LLParserLimits

LIMITS = LLParserLimits(initial_lexer_fuel=100_000, max_grammar_size=100_000, verbose_errors=False)
"""Those that workers compile with."""

MAX_BYTES = 1 << 30
"""Of this process's address space."""


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    for line in sys.stdin:
        fault = LLMatcher.validate_grammar(json.loads(line), limits=LIMITS)
        sys.stdout.write(json.dumps(fault) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
