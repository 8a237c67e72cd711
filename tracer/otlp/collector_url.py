# SPDX-License-Identifier: Apache-2.0
"""The address of a collector, as the user writes it."""

from __future__ import annotations

from urllib.parse import urlsplit

from tracer.errors import BadOption


def collector_url(text: str) -> str:
    """The base URL of a collector without a slash at its end; /v1/traces and /v1/logs are below it.

    Raises:
        BadOption: It is no URL of a collector, or has a password: process lists and logs show options.
    """
    try:
        url = urlsplit(text)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_usable = False
    if not is_usable or url.query or url.fragment or not text.isprintable() or " " in text:
        raise BadOption(f"--otlp {text!r} is no URL of a collector: write http://HOST:4318 or https://HOST:4318.")
    if "@" in url.netloc:
        raise BadOption("--otlp takes no password: put a header for it into the variable OTEL_EXPORTER_OTLP_HEADERS.")
    return text.rstrip("/")
