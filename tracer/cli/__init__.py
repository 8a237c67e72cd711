# SPDX-License-Identifier: Apache-2.0
"""Options and help of the command line. Must not know: what a command does."""
