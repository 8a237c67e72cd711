# SPDX-License-Identifier: Apache-2.0
"""Joins the views that several nodes have of one packet, and concludes what only several views together show.

Must not know: how packets are caught, transported or shown; the kernel.
"""
