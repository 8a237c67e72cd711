# SPDX-License-Identifier: Apache-2.0
"""Parts of a packet that several formats and other packages show alike. Must not know: the formats."""
