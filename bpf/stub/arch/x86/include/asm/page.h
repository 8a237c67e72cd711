/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef PAGE_SIZE
#define PAGE_SIZE 4096UL
#endif
