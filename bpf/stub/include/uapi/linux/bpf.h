/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Empty: bcc asks for this header by name and needs nothing of it. */
