"""The simulator: one process, virtual time, many replicas of the real engine, faults from a seed.

    from perdure.testing.simulation import simulate

    def test_triage_survives_anything():
        report = simulate(triage, script=[call("refund", order="o1"), say("done")], inputs=[Email(...)], seeds=range(50))
        assert report.violations == []

`python -m perdure.testing.simulation --seeds 1000` does it to a cast of its own.
"""

from perdure.testing.simulation._checkers import Change, Checker, Rows, Sight
from perdure.testing.simulation._loop import Deadlock, Livelock, Replica, Shuffled, SimLoop, SimulationError
from perdure.testing.simulation._plan import KINDS, Fault, Plan
from perdure.testing.simulation._play import Cast, Order, Play, Result
from perdure.testing.simulation._port import Call, CallFault, FaultyStore, Record
from perdure.testing.simulation._promises import ROW_CHECKERS
from perdure.testing.simulation._runtime import SimRuntime, block, die
from perdure.testing.simulation._simulate import Series, SimulationReport, simulate
from perdure.testing.simulation._stage import Part, Stage
from perdure.testing.simulation._watch import Violation, Watch

__all__ = [
    "KINDS",
    "ROW_CHECKERS",
    "Call",
    "CallFault",
    "Cast",
    "Change",
    "Checker",
    "Deadlock",
    "Fault",
    "FaultyStore",
    "Livelock",
    "Order",
    "Part",
    "Plan",
    "Play",
    "Record",
    "Replica",
    "Result",
    "Rows",
    "Series",
    "Shuffled",
    "Sight",
    "SimLoop",
    "SimRuntime",
    "SimulationError",
    "SimulationReport",
    "Stage",
    "Violation",
    "Watch",
    "block",
    "die",
    "simulate",
]
