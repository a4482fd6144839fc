"""A process that checks grammars, one a line: some take seconds or hundreds of megabytes, and a process can be ended.

Says once that it is ready, then reads JSON texts from standard input and answers each with what is wrong with it, ""
if nothing is. One that takes too long or too much ends the process, by a signal that says which.
"""

import json
import resource
import sys

from llguidance import LLMatcher, LLParserLimits

LIMITS = LLParserLimits(initial_lexer_fuel=100_000, max_grammar_size=100_000, verbose_errors=False)
"""Those of compiling that workers have too."""

CPU_S = 2
"""For one grammar."""

MAX_BYTES = 1 << 30
"""Of this process's address space."""

MAX_FAULT_CHARS = 2000
READY = "ready"


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _say(READY)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + CPU_S + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        _say(LLMatcher.validate_grammar(json.loads(line), limits=LIMITS)[:MAX_FAULT_CHARS])


def _say(text: str) -> None:
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
