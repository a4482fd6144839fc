"""What stops a start: errors whose text is the one line that the user reads."""


class StartError(Exception):
    """Nothing was started, or all of it ended again; `exit_code` says which kind of reason."""

    exit_code = 1


class UsageError(StartError):
    """What the user asked for can't be: a bad setting, a taken port."""

    exit_code = 2


class ModelError(UsageError):
    """A model that is missing, incomplete or of a kind that isn't served."""


class BrokerError(StartError):
    """An embedded broker didn't come up."""
