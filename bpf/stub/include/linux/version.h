/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* bcc writes a version into its programs; no code here tests it. */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
