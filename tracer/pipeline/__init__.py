# SPDX-License-Identifier: Apache-2.0
"""The run: source, assembler, stages, outputs, shutdown. Must not know: options of the command line, file formats."""
