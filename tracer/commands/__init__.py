# SPDX-License-Identifier: Apache-2.0
"""One file a command: builds what the command needs, runs it, gives the exit status. Must not know: how options are parsed."""
