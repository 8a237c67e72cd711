/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The types that bcc's own headers use from linux/types.h. */
#ifndef STUB_TYPES_H
#define STUB_TYPES_H
typedef unsigned char __u8, u8;
typedef signed char __s8, s8;
typedef unsigned short __u16, u16, __be16, __le16, __sum16;
typedef short __s16, s16;
typedef unsigned int __u32, u32, __be32, __le32, __wsum;
typedef int __s32, s32;
typedef unsigned long long __u64, u64, __be64, __le64;
typedef long long __s64, s64;
typedef _Bool bool;
typedef unsigned long size_t, uintptr_t;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define __always_inline inline __attribute__((always_inline))
#define __bitwise
#define NULL ((void *)0)
#define true 1
#define false 0
#endif
