# SPDX-License-Identifier: Apache-2.0
"""`kubectl k8snet-trace` on real kernels: `make cluster`. Runs on this machine, and boots the others."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "vagrant"))
