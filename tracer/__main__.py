# SPDX-License-Identifier: Apache-2.0
"""`python3 -m tracer` is the command k8snet-trace."""

from tracer.cli.main import main

if __name__ == "__main__":
    main()
