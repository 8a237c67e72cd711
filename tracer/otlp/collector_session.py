# SPDX-License-Identifier: Apache-2.0
"""The HTTP session to a collector: notes how the last request ended, and does not read what the collector sends without end."""

from __future__ import annotations

from typing import Any

import requests

from tracer.util.retry_after import retry_seconds


class CollectorSession(requests.Session):
    """A session of requests that reads no proxy, no .netrc and no certificates from the environment.

    Attributes:
        requests: Number of requests.
        status: Status of the last answer; 0 = there was none.
        retry_after: Time after which the collector asks for the request again, s; 0 = it says nothing.
        problem: Why there was no answer, a clause; "" = there was one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.requests = self.status = self.retry_after = 0
        self.problem = ""

    def request(self, *given: Any, **more: Any) -> requests.Response:
        """Sends a request. The body of the answer, which is not used, is not read."""
        self.status = self.retry_after = 0
        self.requests += 1
        try:
            response = super().request(*given, **more | {"stream": True})
        except requests.RequestException as e:
            self.problem = "it does not answer in time" if isinstance(e, requests.Timeout) else _innermost(e)
            raise
        response.close()
        self.status, self.problem = response.status_code, ""
        self.retry_after = retry_seconds(response.headers.get("Retry-After", ""))
        return response


def _innermost(error: BaseException) -> str:
    """What the kernel said, without the objects of the libraries around it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return type(error).__name__
