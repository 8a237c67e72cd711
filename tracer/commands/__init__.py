# SPDX-License-Identifier: Apache-2.0
"""The commands, one per file. A file builds what its command needs, runs it and returns the exit status.

Must not know: how options are parsed.
"""
