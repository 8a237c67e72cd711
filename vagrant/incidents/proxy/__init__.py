# SPDX-License-Identifier: Apache-2.0
"""The rules that kube-proxy writes for given Services, one file per mode, together with portmap's and flannel's rules.

A test compares them with the rules that the real kube-proxy wrote for the same Services.
"""
