"""What can go wrong in `runtime`: a broken promise of the caller, never an expected shortage."""


class ServiceError(Exception):
    """Root of the errors that the service machinery raises."""


class PayloadTooLarge(ServiceError):  # noqa: N818 - the name says what is wrong
    """A message is longer than the server takes in one piece.

    The caller splits it into numbered parts; `limit_bytes` is what one part may have.
    """

    def __init__(self, subject: str, num_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"message on {subject!r} has {num_bytes} bytes, the server takes {limit_bytes}")
        self.subject = subject
        self.num_bytes = num_bytes
        self.limit_bytes = limit_bytes
