-- name: has_run
-- Whether there is such a run.
SELECT 1 AS found FROM perdure.run WHERE id = %(id)s

-- name: list_runs
-- All runs, newest first.
SELECT seq, created_at FROM perdure.run WHERE seq < %(before)s ORDER BY seq DESC LIMIT %(limit)s

-- name: list_runs_of_status
-- One status, newest first.
SELECT seq, created_at FROM perdure.run WHERE status = %(status)s AND -seq > -%(before)s::bigint ORDER BY -seq LIMIT %(limit)s

-- name: list_runs_of_agent
-- One status of one agent, newest first.
SELECT seq, created_at FROM perdure.run WHERE agent = %(agent)s AND status = %(status)s AND -seq > -%(before)s::bigint ORDER BY -seq LIMIT %(limit)s

-- name: list_runs_of_thread
-- One conversation, newest first.
SELECT seq, created_at FROM perdure.run
WHERE thread = %(thread)s AND seq < %(before)s AND status = ANY (ARRAY(SELECT jsonb_array_elements_text(%(statuses)s::jsonb)))
    AND (%(agent)s::text IS NULL OR agent = %(agent)s) AND (%(parent)s::text IS NULL OR parent_run = %(parent)s)
ORDER BY seq DESC LIMIT %(limit)s

-- name: list_runs_of_parent
-- The children and forks of one run, newest first.
SELECT seq, created_at FROM perdure.run
WHERE parent_run = %(parent)s AND seq < %(before)s AND status = ANY (ARRAY(SELECT jsonb_array_elements_text(%(statuses)s::jsonb)))
    AND (%(agent)s::text IS NULL OR agent = %(agent)s)
ORDER BY seq DESC LIMIT %(limit)s

-- name: list_runs_of_label
-- One label, newest first.
SELECT r.seq, r.created_at FROM perdure.label l JOIN perdure.run r ON r.seq = l.run
WHERE l.name = %(name)s AND l.value = %(value)s AND l.run < %(before)s AND r.status = ANY (ARRAY(SELECT jsonb_array_elements_text(%(statuses)s::jsonb)))
    AND (%(agent)s::text IS NULL OR r.agent = %(agent)s) AND (%(thread)s::text IS NULL OR r.thread = %(thread)s) AND (%(parent)s::text IS NULL OR r.parent_run = %(parent)s)
ORDER BY l.run DESC LIMIT %(limit)s

-- name: count_runs
-- How many runs there are by status.
SELECT status, count(*) AS count FROM perdure.run GROUP BY status

-- name: count_runs_of_agent
-- The same for one agent.
SELECT status, count(*) AS count FROM perdure.run WHERE agent = %(agent)s GROUP BY status

-- name: list_waits
-- Rows of every run, oldest first.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.seq > coalesce((SELECT seq FROM perdure.wait WHERE id = %(after)s), 0) AND (%(any_kind)s = 1 OR w.kind = ANY (ARRAY(SELECT jsonb_array_elements_text(%(kinds)s::jsonb))))
    AND (%(open)s::int IS NULL OR (w.resolved_at IS NULL) = (%(open)s::int = 1))
ORDER BY w.seq LIMIT %(limit)s

-- name: list_open_waits_of_all
-- Open rows of every run, oldest first.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.seq > coalesce((SELECT seq FROM perdure.wait WHERE id = %(after)s), 0)
    AND (%(any_kind)s = 1 OR w.kind = ANY (ARRAY(SELECT jsonb_array_elements_text(%(kinds)s::jsonb))))
ORDER BY w.seq LIMIT %(limit)s

-- name: list_waits_of_run
-- Rows of one run, oldest first.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.run = (SELECT seq FROM perdure.run WHERE id = %(run_id)s) AND w.seq > coalesce((SELECT seq FROM perdure.wait WHERE id = %(after)s), 0)
    AND (%(any_kind)s = 1 OR w.kind = ANY (ARRAY(SELECT jsonb_array_elements_text(%(kinds)s::jsonb)))) AND (%(open)s::int IS NULL OR (w.resolved_at IS NULL) = (%(open)s::int = 1))
ORDER BY w.seq LIMIT %(limit)s

-- name: list_effects
-- Effects of every run, oldest first.
SELECT e.*, r.id AS run_id FROM perdure.effect e JOIN perdure.run r ON r.seq = e.run
WHERE %(any_state)s = 1 OR e.state = ANY (ARRAY(SELECT jsonb_array_elements_text(%(states)s::jsonb)))
ORDER BY e.seq LIMIT %(limit)s

-- name: list_open_effects
-- Effects of every run that are neither done nor failed, oldest first.
SELECT e.*, r.id AS run_id FROM perdure.effect e JOIN perdure.run r ON r.seq = e.run
WHERE e.state IN ('planned', 'started', 'unknown') AND e.state = ANY (ARRAY(SELECT jsonb_array_elements_text(%(states)s::jsonb)))
ORDER BY e.seq LIMIT %(limit)s

-- name: list_effects_of_run
-- Effects of one run, oldest first.
SELECT e.*, r.id AS run_id FROM perdure.effect e JOIN perdure.run r ON r.seq = e.run
WHERE e.run = (SELECT seq FROM perdure.run WHERE id = %(run_id)s) AND (%(any_state)s = 1 OR e.state = ANY (ARRAY(SELECT jsonb_array_elements_text(%(states)s::jsonb))))
    AND (%(claim)s::text IS NULL OR e.claim = %(claim)s)
ORDER BY e.seq LIMIT %(limit)s

-- name: list_effects_of_claim
-- Effects under one business key, oldest first.
SELECT e.*, r.id AS run_id FROM perdure.effect e JOIN perdure.run r ON r.seq = e.run
WHERE e.claim = %(claim)s AND (%(any_state)s = 1 OR e.state = ANY (ARRAY(SELECT jsonb_array_elements_text(%(states)s::jsonb))))
ORDER BY e.seq LIMIT %(limit)s

-- name: get_artifact
-- Bytes and their description.
SELECT * FROM perdure.artifact WHERE id = %(id)s

-- name: describe_artifact
-- A description without the bytes.
SELECT id, media_type, size, filename, created_at FROM perdure.artifact WHERE id = %(id)s

-- name: add_artifact
-- Bytes by content; what is there stays.
INSERT INTO perdure.artifact (id, media_type, size, filename, created_at, body) VALUES (%(id)s, %(media_type)s, %(size)s, %(filename)s, %(created_at)s, %(body)s)
ON CONFLICT (id) DO NOTHING
