/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Empty: bcc includes this header but uses nothing from it. */
