"""Failures the client is told about, in OpenAI's shape."""

from __future__ import annotations


class ApiError(Exception):
    """One row of an error answer. The message is for the caller: it names no paths and no libraries."""

    def __init__(
        self, code: str, message: str, *, status: int = 400, param: str | None = None, **extra: object
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.param = param
        self.extra = extra

    def body(self) -> dict:
        """The JSON object to answer with."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code, **self.extra}
        return {"error": error}


class ClientGone(Exception):
    """The caller closed its connection: whatever was being done for it ends, and nobody is answered."""
