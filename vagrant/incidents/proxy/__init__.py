# SPDX-License-Identifier: Apache-2.0
"""The rules that kube-proxy writes for Services of our choice, a mode a file, with portmap's and flannel's beside them.

A test compares them with what kube-proxy really wrote for the same Services.
"""
