# SPDX-License-Identifier: Apache-2.0
"""Makes Parquet files of the segments of a spool, and brings them to the store, again and again until the store has them.

The name of a file follows from its segment, so a segment that is uploaded twice gives the same files.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from tracer.analysis.table_schema import Value
from tracer.errors import StoreUnreachable
from tracer.store import parquet_file, segment
from tracer.store.bucket import Bucket
from tracer.store.partition import HOUR_US, Partition
from tracer.store.segment import SegmentContent
from tracer.store.spool import Spool, SpoolFile
from tracer.store.stored_tables import ORIGIN, VERSION, columns, names

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
UNREADABLE = "a segment of the spool cannot be read"


class Uploader:
    """The work of one thread, step by step.

    Attributes:
        uploaded: Number of files that the store got.
        uploaded_bytes: Their size, bytes.
        rows: Number of their rows.
        failures: Number of failed attempts.
        problem: Why the last attempt failed, a sentence; "" = it did not fail.
    """

    def __init__(self, bucket: Bucket, spool: Spool) -> None:
        self._bucket, self._spool = bucket, spool
        self._pause, self._not_before = 0.0, 0.0
        self.uploaded = self.uploaded_bytes = self.rows = self.failures = 0
        self.problem = ""

    def step(self, now: float) -> bool:
        """Uploads closed segments, the oldest first, until a failure. What has to wait is compressed, and bounded.

        Args:
            now: A monotonic time, s.

        Returns:
            Whether nothing is left to do.
        """
        if now >= self._not_before:
            for file in self._spool.files():
                try:
                    self._upload(file)
                except StoreUnreachable as e:
                    self.failures += 1
                    self.problem = str(e)
                    self._pause = min(max(FIRST_PAUSE_SECONDS, self._pause * 2), LONGEST_PAUSE_SECONDS)
                    self._not_before = now + self._pause
                    break
                self._pause, self._not_before, self.problem = 0.0, 0.0, ""
        if self._pause:
            self._spool.compress()
        self._spool.enforce_bound()
        return not self._spool.files()

    def retry_now(self) -> None:
        """Does not wait for the end of the pause: the run ends."""
        self._not_before = 0.0

    def _upload(self, file: SpoolFile) -> None:
        """Uploads the rows of one segment, and removes it."""
        try:
            content = segment.read(file.path)
        except FileNotFoundError:
            return
        except OSError:
            content = None
        if content is None or content.version > VERSION:
            self._spool.count_lost("", UNREADABLE)
        else:
            groups, unreadable = self._groups(content)
            for partition, rows in groups.items():
                name = parquet_file.file_name(f"{content.run}-{file.stem}")
                data = parquet_file.encode(partition.table, rows)
                self._bucket.put(f"{partition.directory}/{name}", data)
                self.uploaded += 1
                self.uploaded_bytes += len(data)
                self.rows += len(rows)
            for table, count in unreadable.items():
                self._spool.count_lost(table, UNREADABLE, count)
            if content.lost:
                self._spool.count_lost("", "the run was killed while it wrote them", content.lost)
        self._spool.remove(file)

    @staticmethod
    def _groups(content: SegmentContent) -> tuple[dict[Partition, list[tuple[Value, ...]]], Counter[str]]:
        """The rows of a segment by partition, with the columns of origin; the number of those that are damaged, by table."""
        unreadable: Counter[str] = Counter()
        groups: dict[Partition, list[tuple[Value, ...]]] = defaultdict(list)
        widths = {name: len(columns(name)) - len(ORIGIN) for name in names()}
        for row in content.rows:
            missing = widths.get(row.table, -1) - len(row.values)
            if missing < 0:
                unreadable[row.table] += 1
                continue
            partition = Partition(row.table, row.at // HOUR_US, content.node)
            # A segment of an older version lacks the columns at the end.
            groups[partition].append((content.run, row.at, *row.values, *(None,) * missing))
        return groups, unreadable
