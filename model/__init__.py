"""A checked model of the protocol (docs/concepts/protocol.md): small worlds, explored to the last order of events.

Each module is one small world: `run` (one run, its workers, people and faults), `commits` (table C in numbers), `keys` (concurrency keys, threads,
children), `sharing` (business keys and forks), `votes` (quorum), `edits` (inputs of effects), `budgets` (reservations), `joined` (record and deed in one commit).
The tables themselves are imported from `perdure.core`, so that model and code can't drift. `python -m model --help` says how to run it.
"""
