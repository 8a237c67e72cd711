/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* bcc includes this file and needs this one setting. */
#ifndef STUB_KCONFIG_H
#define STUB_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#endif
