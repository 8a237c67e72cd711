# SPDX-License-Identifier: Apache-2.0
"""A directory of an object storage or of this machine, by its URL: `s3://`, `gs://` or `file://`, through pyarrow.

An object becomes visible whole or not at all: one request uploads it; a larger one, and a file of this machine, gets its name
when it is complete.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qs, urlsplit

from tracer.errors import BadOption, StoreUnreachable
from tracer.util.optional import require_optional

SCHEMES = ("s3", "gs", "file")
CONNECT_SECONDS, REQUEST_SECONDS = 5.0, 15.0
ATTEMPTS = 2
"""Attempts of one request to S3. The uploader repeats a failed upload itself, and with longer pauses."""
ONE_REQUEST_BYTES = 4 << 20
"""Objects up to this size, bytes, are uploaded by one request, so that no part of one can become visible."""
UPLOAD_PREFIX = "_upload-"
"""First characters of the name of a larger object during its upload."""
HIDDEN = (".", "_")
"""First characters of the names that no reader of Parquet takes for data."""


def is_store(text: str) -> bool:
    """Whether a text is the URL of a store, and not the name of a file."""
    return text.partition("://")[0] in SCHEMES and "://" in text


@dataclass(frozen=True)
class StoredObject:
    """An object. path: below the store, with `/`; size: bytes."""

    path: str
    size: int


class Bucket:
    """A store. Each method raises StoreUnreachable when the storage does not do what it should.

    Args:
        url: Its URL. `?endpoint_override=HOST:PORT&scheme=http` or $AWS_ENDPOINT_URL: another server than Amazon's.

    Attributes:
        url: The URL, without credentials.
        is_local: The store is a directory of this machine.

    Raises:
        BadOption: The URL is none of a store.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or (parts.scheme == "file") == bool(parts.netloc):
            raise BadOption(f"{url!r} is no store: write s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH.")
        if "@" in parts.netloc:
            raise BadOption("The URL of a store has no credentials: they come from the environment, as for other clients.")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        self.is_local = parts.scheme == "file"
        self.root = posixpath.normpath(parts.path) if self.is_local else f"{parts.netloc}{parts.path}".strip("/")
        self._files: Any = require_optional("pyarrow.fs", "a store")
        self._system = self._connected(parts.scheme, {name: each[-1] for name, each in parse_qs(parts.query).items()})

    def _connected(self, scheme: str, query: dict[str, str]) -> Any:
        if scheme == "file":
            return self._files.LocalFileSystem()
        if scheme == "gs":
            endpoint = query.get("endpoint_override", "")
            more = (
                {"endpoint_override": endpoint, "scheme": query.get("scheme", "https"), "anonymous": True} if endpoint else {}
            )
            return self._files.GcsFileSystem(**more)
        server = query.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        settings: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "request_timeout": REQUEST_SECONDS,
            "retry_strategy": self._files.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            "background_writes": False,
            "allow_delayed_open": True,
        }
        if server:
            with_scheme = urlsplit(server if "://" in server else f"{query.get('scheme', 'https')}://{server}")
            settings |= {"endpoint_override": with_scheme.netloc, "scheme": with_scheme.scheme, "region": "us-east-1"}
        if region := query.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            settings["region"] = region
        try:
            return self._files.S3FileSystem(**settings)
        except OSError as e:
            raise StoreUnreachable(f"{self.url} cannot be used: {_first_line(e)}.") from e

    @property
    def filesystem(self) -> Any:
        """The file system of pyarrow."""
        return self._system

    def full(self, path: str) -> str:
        """The path of an object for that file system."""
        return f"{self.root}/{path}" if path else self.root

    def put(self, path: str, content: bytes) -> None:
        """Writes an object, whole or not at all; one with this name is replaced."""
        try:
            if self.is_local:
                self._put_file(Path(self.full(path)), content)
                return
            if len(content) <= ONE_REQUEST_BYTES:
                self._upload(path, content)
                return
            # pyarrow ends a broken upload when the stream is freed, and what was sent of it becomes an object. A hidden one.
            directory, _, name = path.rpartition("/")
            hidden = f"{directory}/{UPLOAD_PREFIX}{name}"
            self._upload(hidden, content)
            self._system.move(self.full(hidden), self.full(path))
        except OSError as e:
            raise StoreUnreachable(f"{path} cannot be written to {self.url}: {_first_line(e)}.") from e

    def _upload(self, path: str, content: bytes) -> None:
        """Not as a context manager, which would end the upload also after an error."""
        stream = self._system.open_output_stream(self.full(path), buffer_size=0)
        stream.write(content)
        stream.close()

    @staticmethod
    def _put_file(target: Path, content: bytes) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def read(self, path: str) -> bytes:
        """The content of an object."""
        try:
            with self._system.open_input_stream(self.full(path)) as stream:
                return cast(bytes, stream.read())
        except OSError as e:
            raise StoreUnreachable(f"{path} of {self.url} cannot be read: {_first_line(e)}.") from e

    def copy_to(self, path: str, target: BinaryIO, piece: int = 1 << 22) -> None:
        """Writes the content of an object to a file. piece: bytes that are in memory at once."""
        try:
            with self._system.open_input_stream(self.full(path)) as stream:
                while part := stream.read(piece):
                    target.write(part)
        except OSError as e:
            raise StoreUnreachable(f"{path} of {self.url} cannot be copied: {_first_line(e)}.") from e

    def remove(self, path: str) -> None:
        """Removes an object. One that does not exist is no error."""
        try:
            self._system.delete_file(self.full(path))
        except FileNotFoundError:
            return
        except OSError as e:
            raise StoreUnreachable(f"{path} of {self.url} cannot be removed: {_first_line(e)}.") from e

    def directories(self, path: str) -> list[str]:
        """The names of the directories in a directory, sorted; [] if there is none."""
        found = self._listed(path, recursive=False)
        return sorted(each.base_name for each in found if each.type == self._files.FileType.Directory)

    def objects(self, path: str) -> Iterator[StoredObject]:
        """Yields the objects below a directory, also hidden ones, in the order of their paths."""
        for each in sorted(self._listed(path, recursive=True), key=lambda each: cast(str, each.path)):
            if each.type == self._files.FileType.File:
                yield StoredObject(each.path.removeprefix(f"{self.root}/"), each.size)

    def _listed(self, path: str, recursive: bool) -> list[Any]:
        selector = self._files.FileSelector(self.full(path), recursive=recursive, allow_not_found=True)
        try:
            return cast("list[Any]", self._system.get_file_info(selector))
        except OSError as e:
            raise StoreUnreachable(f"{self.url} cannot be listed: {_first_line(e)}.") from e


def is_hidden(path: str) -> bool:
    """Whether an object is no data: a file that is being written, or a note of the compaction."""
    return path.rpartition("/")[2].startswith(HIDDEN)


def _first_line(error: OSError) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__)[:300].rstrip(".")
