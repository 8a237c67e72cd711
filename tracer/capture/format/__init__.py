# SPDX-License-Identifier: Apache-2.0
"""The format of a capture file: schema, codecs, checks, migrations. Must not know: when records are written or read."""
