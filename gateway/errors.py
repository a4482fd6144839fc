"""The gateway's errors, and the one builder of OpenAI's error body."""

from __future__ import annotations

from protocol.errors import MEANINGS, Code


class ModelFolderError(Exception):
    """The model's folder can't be served: one line that says what is wrong with it."""


class GatewayError(Exception):
    """An outcome for the client: HTTP status, OpenAI type and code, a sentence that says what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """``param`` is the field at fault; ``retry_after_s`` becomes the Retry-After header."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's nested error body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def from_code(code: str, message: str) -> GatewayError:
    """The error that a worker's code means to a client; an unknown code is a 500."""
    known = code in set(Code)
    meaning = MEANINGS[Code(code) if known else Code.ENGINE]
    retry_after = 1 if meaning.again else None
    return GatewayError(meaning.status, message, type=meaning.type, code=str(code), retry_after_s=retry_after)
