# SPDX-License-Identifier: Apache-2.0
"""Random NetworkPolicies and packets on a real kernel, for tests/kernel/all_policies.py."""
