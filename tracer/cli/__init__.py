# SPDX-License-Identifier: Apache-2.0
"""The options and the help of the command line. Must not know: what a command does."""
