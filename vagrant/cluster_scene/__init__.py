# SPDX-License-Identifier: Apache-2.0
"""A cluster of several machines: nodes with pods, flannel's overlay, kube-proxy's rules, and traffic with a count.

plan      names and addresses: pure, also for the host
objects   the same as objects of the Kubernetes API
node      builds a node on the machine that it runs on
faults    gives that node a fault that only several nodes together show
requests  makes traffic on the machine that it runs on
"""
