"""The simulator: one process, virtual time, many replicas of the real engine, faults from a seed."""
