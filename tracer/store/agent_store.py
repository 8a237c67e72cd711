# SPDX-License-Identifier: Apache-2.0
"""The store of an always-on agent: its URL and the directory of its spool, checked before anything is attached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracer.errors import OutputNotWritten
from tracer.store.bucket import Bucket
from tracer.store.spool import SPOOL_BYTES
from tracer.store.store_output import StoreOutput
from tracer.store.store_writer import StoreWriter
from tracer.util.new_file import intruder

SPOOL_DIRECTORY = "/var/lib/k8snet-trace/spool"
"""Default directory of the spool. The DaemonSet keeps it on the node."""


@dataclass(frozen=True)
class AgentStore:
    """Where an agent stores its results.

    Attributes:
        url: The store.
        spool: Directory of the spool; "" = SPOOL_DIRECTORY.
        spool_bytes: Bound of the spool; 0 = SPOOL_BYTES.
    """

    url: str
    spool: str = ""
    spool_bytes: int = 0

    def output(self, node: str) -> StoreOutput:
        """The output of a run.

        Raises:
            BadOption: The URL is none of a store.
            NoLibrary: pyarrow is not installed.
            OutputNotWritten: The spool cannot be used.
        """
        bucket = Bucket(self.url)
        directory = Path(self.spool or SPOOL_DIRECTORY)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if others := intruder(directory):
                raise OutputNotWritten(f"The spool {directory} is not safe: {others}. Choose another one with --spool.")
            writer = StoreWriter(bucket, directory, node, most_bytes=self.spool_bytes or SPOOL_BYTES)
        except OSError as e:
            raise OutputNotWritten(f"The spool {directory} cannot be used: {e.strerror or e}.") from e
        return StoreOutput(writer, bucket.url)
