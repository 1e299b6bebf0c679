-- name: add_event
-- One event under its number.
INSERT INTO event (run, seq, type, at, data) VALUES (:run, :seq, :type, :at, :data)

-- name: add_step
-- One row of the run's log under its number.
INSERT INTO step (
    run, seq, generation, idx, kind, name, tool_call_id, position, base, message, finish_reason, usage, started_at, finished_at, input, output, text, error
) VALUES (
    :run, :seq, :generation, :idx, :kind, :name, :tool_call_id, :position, :base, :message, :finish_reason, :usage, :started_at, :finished_at, :input,
    :output, :text, :error
)

-- name: put_message
-- One message at its place; the one that was there is replaced.
INSERT INTO message (run, generation, base, position, body) VALUES (:run, :generation, :base, :position, :body)
ON CONFLICT (run, generation, base, position) DO UPDATE SET body = excluded.body

-- name: put_checkpoint
-- The history of (generation, idx); an equal one is replaced.
INSERT INTO checkpoint (run, generation, idx, base, length, format, created_at, finish_reason, version, tools_hash)
VALUES (:run, :generation, :idx, :base, :length, :format, :created_at, :finish_reason, :version, :tools_hash)
ON CONFLICT (run, generation, idx) DO UPDATE SET
    base = excluded.base, length = excluded.length, format = excluded.format, created_at = excluded.created_at, finish_reason = excluded.finish_reason,
    version = excluded.version, tools_hash = excluded.tools_hash

-- name: last_checkpoint
-- The checkpoint with the highest index of a generation.
SELECT * FROM checkpoint WHERE run = :run AND generation = :generation ORDER BY idx DESC LIMIT 1

-- name: get_checkpoint
-- One checkpoint.
SELECT * FROM checkpoint WHERE run = :run AND generation = :generation AND idx = :idx

-- name: list_messages
-- The first messages of a list.
SELECT body FROM message WHERE run = :run AND generation = :generation AND base = :base AND position < :length ORDER BY position

-- name: list_events
-- Events above a number, in order.
SELECT e.* FROM event e WHERE e.run = (SELECT seq FROM run WHERE id = :id) AND e.seq > :after ORDER BY e.seq LIMIT :limit

-- name: list_steps
-- Rows of the log above a number, in order.
SELECT s.* FROM step s WHERE s.run = (SELECT seq FROM run WHERE id = :id) AND s.seq > :after ORDER BY s.seq LIMIT :limit

-- name: list_steps_of_last
-- The rows that belong to the checkpoint with the highest index, or to the index before the first one.
SELECT * FROM step WHERE run = :run AND generation = :generation
    AND idx = COALESCE((SELECT max(idx) FROM checkpoint WHERE run = :run AND generation = :generation), 0) ORDER BY seq

-- name: count_model_calls
-- Model calls of a generation that did not end in an error.
SELECT count(*) AS count FROM step WHERE run = :run AND generation = :generation AND kind = 'llm' AND error IS NULL

-- name: list_recent_calls
-- The last model calls of a generation, newest first.
SELECT * FROM step WHERE run = :run AND generation = :generation AND kind = 'llm' ORDER BY seq DESC LIMIT :limit
