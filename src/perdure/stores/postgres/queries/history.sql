-- name: add_event
-- One event under its number.
INSERT INTO perdure.event (run, seq, type, at, data) VALUES (%(run)s, %(seq)s, %(type)s, %(at)s, %(data)s)

-- name: add_step
-- One row of the run's log under its number.
INSERT INTO perdure.step (
    run, seq, generation, idx, kind, name, tool_call_id, position, base, message, finish_reason, usage, started_at, finished_at, input, output, text, error
) VALUES (
    %(run)s, %(seq)s, %(generation)s, %(idx)s, %(kind)s, %(name)s, %(tool_call_id)s, %(position)s, %(base)s, %(message)s, %(finish_reason)s, %(usage)s, %(started_at)s, %(finished_at)s, %(input)s,
    %(output)s, %(text)s, %(error)s
)

-- name: put_message
-- One message at its place; the one that was there is replaced.
INSERT INTO perdure.message (run, generation, base, position, body) VALUES (%(run)s, %(generation)s, %(base)s, %(position)s, %(body)s)
ON CONFLICT (run, generation, base, position) DO UPDATE SET body = excluded.body

-- name: put_checkpoint
-- The history of (generation, idx); an equal one is replaced.
INSERT INTO perdure.checkpoint (run, generation, idx, base, length, format, created_at, finish_reason, version, tools_hash)
VALUES (%(run)s, %(generation)s, %(idx)s, %(base)s, %(length)s, %(format)s, %(created_at)s, %(finish_reason)s, %(version)s, %(tools_hash)s)
ON CONFLICT (run, generation, idx) DO UPDATE SET
    base = excluded.base, length = excluded.length, format = excluded.format, created_at = excluded.created_at, finish_reason = excluded.finish_reason,
    version = excluded.version, tools_hash = excluded.tools_hash

-- name: last_checkpoint
-- The checkpoint with the highest index of a generation.
SELECT * FROM perdure.checkpoint WHERE run = %(run)s AND generation = %(generation)s ORDER BY idx DESC LIMIT 1

-- name: get_checkpoint
-- One checkpoint.
SELECT * FROM perdure.checkpoint WHERE run = %(run)s AND generation = %(generation)s AND idx = %(idx)s

-- name: list_messages
-- The first messages of a list.
SELECT body FROM perdure.message WHERE run = %(run)s AND generation = %(generation)s AND base = %(base)s AND position < %(length)s ORDER BY position

-- name: list_events
-- Events above a number, in order.
SELECT e.* FROM perdure.event e WHERE e.run = (SELECT seq FROM perdure.run WHERE id = %(id)s) AND e.seq > %(after)s ORDER BY e.seq LIMIT %(limit)s

-- name: list_steps
-- Rows of the log above a number, in order.
SELECT s.* FROM perdure.step s WHERE s.run = (SELECT seq FROM perdure.run WHERE id = %(id)s) AND s.seq > %(after)s ORDER BY s.seq LIMIT %(limit)s

-- name: list_steps_of_last
-- The rows that belong to the checkpoint with the highest index, or to the index before the first one.
SELECT * FROM perdure.step WHERE run = %(run)s AND generation = %(generation)s
    AND idx = COALESCE((SELECT max(idx) FROM perdure.checkpoint WHERE run = %(run)s AND generation = %(generation)s), 0) ORDER BY seq

-- name: count_model_calls
-- Model calls of a generation that did not end in an error.
SELECT count(*) AS count FROM perdure.step WHERE run = %(run)s AND generation = %(generation)s AND kind = 'llm' AND error IS NULL

-- name: list_recent_calls
-- The last model calls of a generation, newest first.
SELECT * FROM perdure.step WHERE run = %(run)s AND generation = %(generation)s AND kind = 'llm' ORDER BY seq DESC LIMIT %(limit)s
