-- What the pipeline's SQLite storage has of its own, beside jobs.sql.

-- name: schema
-- A checkpoint that is a phase's beginning is stored once, in entries; `jobs.entry` points to it. One that was saved later is in `jobs.checkpoint`.
CREATE TABLE IF NOT EXISTS {p}meta (schema INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS {p}jobs (
    job_id      TEXT PRIMARY KEY,
    status      TEXT NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'running', 'paused', 'complete', 'error')),
    error       TEXT,
    entry       TEXT,
    checkpoint  TEXT,
    output      TEXT,
    version     INTEGER NOT NULL DEFAULT 0,
    lease_until REAL,
    deaths      INTEGER NOT NULL DEFAULT 0,
    progress    TEXT,
    updated_at  REAL
);
CREATE INDEX IF NOT EXISTS {p}jobs_status ON {p}jobs (status, job_id);
CREATE TABLE IF NOT EXISTS {p}entries (
    job_id     TEXT NOT NULL,
    phase      TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    PRIMARY KEY (job_id, phase)
);
CREATE TABLE IF NOT EXISTS {p}log (
    id     INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    entry  TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS {p}log_job ON {p}log (job_id, id);
CREATE TABLE IF NOT EXISTS {p}advances (
    job_id     TEXT PRIMARY KEY,
    due        REAL NOT NULL,
    held_until REAL NOT NULL DEFAULT 0,
    token      TEXT
);
CREATE INDEX IF NOT EXISTS {p}advances_due ON {p}advances (due);

-- name: has_schema
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{p}meta'

-- name: commit_outcome
-- The version in the condition is what keeps a late writer out; everything else of the outcome is written only if this changed a row.
UPDATE {p}jobs SET
    status      = coalesce(:status, status),
    error       = CASE WHEN :status IS NULL THEN error ELSE :error END,
    entry       = CASE WHEN :moved THEN :entry ELSE entry END,
    checkpoint  = CASE WHEN :moved THEN :checkpoint ELSE checkpoint END,
    output      = CASE WHEN :gave THEN :output ELSE output END,
    progress    = CASE WHEN :shown THEN :progress WHEN :hold THEN progress END,
    version     = CASE WHEN :hold THEN version ELSE version + 1 END,
    lease_until = CASE WHEN :hold THEN lease_until END,
    deaths      = CASE WHEN :hold THEN deaths ELSE 0 END,
    updated_at  = {now}
WHERE job_id = :job_id AND version = :version

-- name: move_on
-- A step and the claim of the next one, which is most of what a busy worker writes: the row is touched once.
UPDATE {p}jobs SET
    entry = :entry, checkpoint = :checkpoint, progress = NULL, version = version + 2, lease_until = {now} + :lease, deaths = 0, updated_at = {now}
WHERE job_id = :job_id AND version = :version AND status = 'running'

-- name: put_entry
INSERT INTO {p}entries (job_id, phase, checkpoint) VALUES (:job_id, :entry, :reached)
ON CONFLICT (job_id, phase) DO UPDATE SET checkpoint = excluded.checkpoint

-- name: clear_entries
DELETE FROM {p}entries WHERE job_id = :job_id

-- name: append_log
INSERT INTO {p}log (job_id, entry) VALUES (:job_id, :line)

-- name: next_is
-- After an outcome: this advance and no other.
INSERT INTO {p}advances (job_id, due) VALUES (:job_id, {now} + :delay)
ON CONFLICT (job_id) DO UPDATE SET due = excluded.due, held_until = 0, token = NULL

-- name: keep_advance
-- The job stays with its worker, whose advance comes due again should it die. That one is good for a while yet: mostly nothing is written.
INSERT INTO {p}advances AS a (job_id, due) VALUES (:job_id, {now} + :lease)
ON CONFLICT (job_id) DO UPDATE SET due = excluded.due, held_until = 0, token = NULL WHERE max(a.due, a.held_until) < {now} + :lease / 2

-- name: delete_advance
DELETE FROM {p}advances WHERE job_id = :job_id

-- name: claim_job
UPDATE {p}jobs SET version = version + 1, deaths = deaths + (lease_until IS NOT NULL), lease_until = {now} + :lease, updated_at = {now}
WHERE job_id = :job_id AND status = 'running' AND coalesce(checkpoint, entry) IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})

-- name: due_advance
-- An idle worker asks this often; it takes no lock.
SELECT 1 FROM {p}advances WHERE due <= {now} AND held_until <= {now} LIMIT 1

-- name: take_advances
UPDATE {p}advances SET held_until = {now} + :hold, token = :token
WHERE job_id IN (SELECT job_id FROM {p}advances WHERE due <= {now} AND held_until <= {now} ORDER BY due LIMIT :limit)
RETURNING due, job_id
