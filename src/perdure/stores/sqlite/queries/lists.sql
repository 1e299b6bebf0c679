-- name: has_run
-- Whether there is such a run.
SELECT 1 AS found FROM run WHERE id = :id

-- name: list_runs
-- All runs, newest first.
SELECT seq, created_at FROM run WHERE seq < :before ORDER BY seq DESC LIMIT :limit

-- name: list_runs_of_status
-- One status, newest first.
SELECT seq, created_at FROM run WHERE status = :status AND seq < :before ORDER BY seq DESC LIMIT :limit

-- name: list_runs_of_agent
-- One status of one agent, newest first.
SELECT seq, created_at FROM run WHERE agent = :agent AND status = :status AND seq < :before ORDER BY seq DESC LIMIT :limit

-- name: list_runs_of_thread
-- One conversation, newest first.
SELECT seq, created_at FROM run
WHERE thread = :thread AND seq < :before AND status IN (SELECT value FROM json_each(:statuses))
    AND (:agent IS NULL OR agent = :agent) AND (:parent IS NULL OR parent_run = :parent)
ORDER BY seq DESC LIMIT :limit

-- name: list_runs_of_parent
-- The children and forks of one run, newest first.
SELECT seq, created_at FROM run
WHERE parent_run = :parent AND seq < :before AND status IN (SELECT value FROM json_each(:statuses))
    AND (:agent IS NULL OR agent = :agent)
ORDER BY seq DESC LIMIT :limit

-- name: list_runs_of_label
-- One label, newest first.
SELECT r.seq, r.created_at FROM label l JOIN run r ON r.seq = l.run
WHERE l.name = :name AND l.value = :value AND l.run < :before AND r.status IN (SELECT value FROM json_each(:statuses))
    AND (:agent IS NULL OR r.agent = :agent) AND (:thread IS NULL OR r.thread = :thread) AND (:parent IS NULL OR r.parent_run = :parent)
ORDER BY l.run DESC LIMIT :limit

-- name: count_runs
-- How many runs there are by status.
SELECT status, count(*) AS count FROM run GROUP BY status

-- name: count_runs_of_agent
-- The same for one agent.
SELECT status, count(*) AS count FROM run WHERE agent = :agent GROUP BY status

-- name: list_waits
-- Rows of every run, oldest first.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.seq > coalesce((SELECT seq FROM wait WHERE id = :after), 0) AND (:any_kind = 1 OR w.kind IN (SELECT value FROM json_each(:kinds)))
    AND (:open IS NULL OR (w.resolved_at IS NULL) = :open)
ORDER BY w.seq LIMIT :limit

-- name: list_open_waits_of_all
-- Open rows of every run, oldest first.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.seq > coalesce((SELECT seq FROM wait WHERE id = :after), 0)
    AND (:any_kind = 1 OR w.kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY w.seq LIMIT :limit

-- name: list_waits_of_run
-- Rows of one run, oldest first.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.run = (SELECT seq FROM run WHERE id = :run_id) AND w.seq > coalesce((SELECT seq FROM wait WHERE id = :after), 0)
    AND (:any_kind = 1 OR w.kind IN (SELECT value FROM json_each(:kinds))) AND (:open IS NULL OR (w.resolved_at IS NULL) = :open)
ORDER BY w.seq LIMIT :limit

-- name: list_effects
-- Effects of every run, oldest first.
SELECT e.*, r.id AS run_id FROM effect e JOIN run r ON r.seq = e.run
WHERE :any_state = 1 OR e.state IN (SELECT value FROM json_each(:states))
ORDER BY e.seq LIMIT :limit

-- name: list_open_effects
-- Effects of every run that are neither done nor failed, oldest first.
SELECT e.*, r.id AS run_id FROM effect e JOIN run r ON r.seq = e.run
WHERE e.state IN ('planned', 'started', 'unknown') AND e.state IN (SELECT value FROM json_each(:states))
ORDER BY e.seq LIMIT :limit

-- name: list_effects_of_run
-- Effects of one run, oldest first.
SELECT e.*, r.id AS run_id FROM effect e JOIN run r ON r.seq = e.run
WHERE e.run = (SELECT seq FROM run WHERE id = :run_id) AND (:any_state = 1 OR e.state IN (SELECT value FROM json_each(:states)))
    AND (:claim IS NULL OR e.claim = :claim)
ORDER BY e.seq LIMIT :limit

-- name: list_effects_of_claim
-- Effects under one business key, oldest first.
SELECT e.*, r.id AS run_id FROM effect e JOIN run r ON r.seq = e.run
WHERE e.claim = :claim AND (:any_state = 1 OR e.state IN (SELECT value FROM json_each(:states)))
ORDER BY e.seq LIMIT :limit

-- name: get_artifact
-- Bytes and their description.
SELECT * FROM artifact WHERE id = :id

-- name: describe_artifact
-- A description without the bytes.
SELECT id, media_type, size, filename, created_at FROM artifact WHERE id = :id

-- name: add_artifact
-- Bytes by content; what is there stays.
INSERT INTO artifact (id, media_type, size, filename, created_at, body) VALUES (:id, :media_type, :size, :filename, :created_at, :body)
ON CONFLICT (id) DO NOTHING
