# SPDX-License-Identifier: Apache-2.0
"""The command k8snet-trace as `python3 -m tracer`."""

from tracer.cli.main import main

if __name__ == "__main__":
    main()
