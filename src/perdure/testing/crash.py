"""Kill your own agent everywhere, and see what is left: `crash_everywhere`, and the pytest fixture of the same name.

`python -m perdure.testing.crash` does it to three agents of its own, on memory and on SQLite.
"""

from perdure.testing.simulation._crash import CrashReport, Point, crash_everywhere
from perdure.testing.simulation._ledger import Deed, Ledger

__all__ = ["CrashReport", "Deed", "Ledger", "Point", "crash_everywhere"]

if __name__ == "__main__":
    from perdure.testing.simulation._crash_main import main

    raise SystemExit(main())
