"""What ends a benchmark before it has figures: an error whose text is the one line that the user reads."""


class BenchError(Exception):
    """What was asked for can't be, or a server doesn't answer at all."""
