"""The verbs of both SQL stores, written once and without I/O.

A verb is a generator (a `Program`): it yields batches of named queries, each batch one round trip, and receives the rows of each. SQLite drives it on
its writer thread, Postgres over a connection; either inside one transaction, which the driver opens and ends. The text of the queries belongs
to each store, under the same names.
"""
