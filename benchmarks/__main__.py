"""Every benchmark, one after the other, each in a process of its own. The exit code says whether all that has a target met it."""

from __future__ import annotations

import subprocess
import sys

ALL = ("quick", "postgres", "saturation", "claims", "waiting", "pipeline")

if __name__ == "__main__":
    missed = [name for name in ALL if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode]
    print("All targets are met." if not missed else f"Missed, or not measured: {', '.join(missed)}.")
    sys.exit(1 if missed else 0)
