# SPDX-License-Identifier: Apache-2.0
"""Events of the running kernel, batch by batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tracer.util.worker import user_warnings

if TYPE_CHECKING:
    from tracer.kernel.session import Session
    from tracer.kube.filter_renewal import RenewedFilter
    from tracer.kube.owner_resolver import OwnerResolver
    from tracer.model.filter import Filter
from tracer.pipeline.source import Batch


class LiveSource:
    """Reads batches from the running probes. kube: gives notes and renewed filters."""

    def __init__(self, session: Session, kube: OwnerResolver | None = None) -> None:
        self.session, self._kube = session, kube
        if kube:
            kube.attach(self.set_filter)

    def read(self, last: bool) -> Batch:
        now = time.monotonic_ns()
        batch = self.session.events()
        return Batch(now, batch, self.session.losses(), last)

    def poll_losses(self) -> None:
        self.session.poll_losses()

    def notes(self) -> list[str]:
        return (self._kube.notes() if self._kube else []) + user_warnings.read()

    def set_filter(self, new_filter: Filter) -> None:
        self.session.set_filter(new_filter)

    def mark_unexplained(self, chunks: int) -> None: ...

    def was_unexplained(self) -> bool:
        return False

    def renewals(self) -> list[RenewedFilter]:
        return self._kube.renewals() if self._kube else []
