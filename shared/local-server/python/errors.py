"""Errors that are sent to the client, in OpenAI's format."""

from __future__ import annotations


class ApiError(Exception):
    """An error response. The message is for the caller and contains no paths or library names."""

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
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code, **self.extra}
        return {"error": error}


class ClientGone(Exception):
    """The caller has closed its connection. Its work is stopped, and no response is sent."""
