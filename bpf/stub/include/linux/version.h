/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* bcc wants a version to write into its programs; nothing here tests it. */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
