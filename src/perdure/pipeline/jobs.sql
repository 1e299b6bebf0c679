-- The statements that every SQL storage of the pipeline has word for word. {p} is what stands before each table's name, {now} the clock; times are
-- seconds since 1970, UTC.

-- name: get_schema
SELECT schema FROM {p}meta

-- name: put_schema
INSERT INTO {p}meta (schema) SELECT CAST(:schema AS INTEGER) WHERE NOT EXISTS (SELECT 1 FROM {p}meta)

-- name: get_job
SELECT j.job_id, j.status, j.error, coalesce(j.checkpoint, e.checkpoint) AS checkpoint, j.output, j.version, j.lease_until, j.deaths, j.progress,
    j.updated_at, {now} AS now
FROM {p}jobs j LEFT JOIN {p}entries e ON e.job_id = j.job_id AND e.phase = j.entry
WHERE j.job_id = :job_id

-- name: list_jobs
SELECT j.job_id, j.status, j.error, coalesce(j.checkpoint, e.checkpoint) AS checkpoint, j.output, j.version, j.lease_until, j.deaths, j.progress,
    j.updated_at, {now} AS now
FROM {p}jobs j LEFT JOIN {p}entries e ON e.job_id = j.job_id AND e.phase = j.entry
WHERE (CAST(:status AS TEXT) IS NULL OR j.status = :status) AND j.job_id > :after
ORDER BY j.job_id LIMIT :limit

-- name: list_running
SELECT job_id FROM {p}jobs WHERE status = 'running' ORDER BY job_id

-- name: list_stranded
SELECT job_id FROM {p}jobs j WHERE status = 'running' AND NOT EXISTS (SELECT 1 FROM {p}advances a WHERE a.job_id = j.job_id) ORDER BY job_id

-- name: make_job
INSERT INTO {p}jobs (job_id) VALUES (:job_id) ON CONFLICT (job_id) DO NOTHING

-- name: set_status
UPDATE {p}jobs SET status = :status, error = :error, updated_at = {now} WHERE job_id = :job_id

-- name: set_checkpoint
UPDATE {p}jobs SET entry = NULL, checkpoint = :checkpoint, updated_at = {now} WHERE job_id = :job_id

-- name: set_output
UPDATE {p}jobs SET output = :output, updated_at = {now} WHERE job_id = :job_id

-- name: get_entry
SELECT checkpoint FROM {p}entries WHERE job_id = :job_id AND phase = :phase

-- name: get_log
SELECT entry FROM {p}log WHERE job_id = :job_id ORDER BY id

-- name: clear_log
DELETE FROM {p}log WHERE job_id = :job_id

-- name: renew_lease
UPDATE {p}jobs SET lease_until = {now} + :lease, progress = coalesce(:progress, progress)
WHERE job_id = :job_id AND version = :version AND lease_until IS NOT NULL
RETURNING job_id

-- name: put_advance
-- A row that somebody took is not this one: it is due anew, whatever becomes of the taking.
INSERT INTO {p}advances AS a (job_id, due) VALUES (:job_id, {now} + :delay)
ON CONFLICT (job_id) DO UPDATE SET
    due = CASE WHEN a.token IS NULL AND a.due < excluded.due THEN a.due ELSE excluded.due END, held_until = 0, token = NULL

-- name: drop_advance
DELETE FROM {p}advances WHERE job_id = :job_id AND token = :token

-- name: defer_advance
UPDATE {p}advances SET due = {now} + :delay, held_until = 0, token = NULL WHERE job_id = :job_id AND token = :token

-- name: next_advance
SELECT min(CASE WHEN held_until > due THEN held_until ELSE due END) - {now} AS wait FROM {p}advances

-- name: next_advance_of
SELECT CASE WHEN held_until > due THEN held_until ELSE due END - {now} AS wait FROM {p}advances WHERE job_id = :job_id
