-- Every statement of the pipeline's SQLite storage. {p} is the table prefix.

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
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{p}meta';

-- name: get_schema
SELECT schema FROM {p}meta;

-- name: put_schema
INSERT INTO {p}meta (schema) SELECT :schema WHERE NOT EXISTS (SELECT 1 FROM {p}meta);

-- name: get_job
SELECT j.job_id, j.status, j.error, coalesce(j.checkpoint, e.checkpoint), j.output, j.version, j.lease_until, j.deaths, j.progress, j.updated_at
FROM {p}jobs j LEFT JOIN {p}entries e ON e.job_id = j.job_id AND e.phase = j.entry
WHERE j.job_id = :job_id;

-- name: list_jobs
SELECT j.job_id, j.status, j.error, coalesce(j.checkpoint, e.checkpoint), j.output, j.version, j.lease_until, j.deaths, j.progress, j.updated_at
FROM {p}jobs j LEFT JOIN {p}entries e ON e.job_id = j.job_id AND e.phase = j.entry
WHERE (:status IS NULL OR j.status = :status) AND j.job_id > :after
ORDER BY j.job_id LIMIT :limit;

-- name: list_running
SELECT job_id FROM {p}jobs WHERE status = 'running' ORDER BY job_id;

-- name: make_job
INSERT OR IGNORE INTO {p}jobs (job_id) VALUES (:job_id);

-- name: set_status
UPDATE {p}jobs SET status = :status, error = :error, updated_at = :now WHERE job_id = :job_id;

-- name: set_checkpoint
UPDATE {p}jobs SET entry = NULL, checkpoint = :checkpoint, updated_at = :now WHERE job_id = :job_id;

-- name: set_output
UPDATE {p}jobs SET output = :output, updated_at = :now WHERE job_id = :job_id;

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
    updated_at  = :now
WHERE job_id = :job_id AND version = :version;

-- name: put_entry
INSERT INTO {p}entries (job_id, phase, checkpoint) VALUES (:job_id, :phase, :checkpoint)
ON CONFLICT (job_id, phase) DO UPDATE SET checkpoint = excluded.checkpoint;

-- name: get_entry
SELECT checkpoint FROM {p}entries WHERE job_id = :job_id AND phase = :phase;

-- name: clear_entries
DELETE FROM {p}entries WHERE job_id = :job_id;

-- name: append_log
INSERT INTO {p}log (job_id, entry) VALUES (:job_id, :entry);

-- name: get_log
SELECT entry FROM {p}log WHERE job_id = :job_id ORDER BY id;

-- name: clear_log
DELETE FROM {p}log WHERE job_id = :job_id;

-- name: claim_job
UPDATE {p}jobs SET version = version + 1, deaths = deaths + (lease_until IS NOT NULL), lease_until = :until, updated_at = :now
WHERE job_id = :job_id AND status = 'running' AND coalesce(checkpoint, entry) IS NOT NULL AND (lease_until IS NULL OR lease_until <= :now);

-- name: renew_lease
UPDATE {p}jobs SET lease_until = :until, progress = coalesce(:progress, progress)
WHERE job_id = :job_id AND version = :version AND lease_until IS NOT NULL;

-- name: put_advance
-- A row that somebody took is not this one: it is due anew, whatever becomes of the taking.
INSERT INTO {p}advances (job_id, due) VALUES (:job_id, :due)
ON CONFLICT (job_id) DO UPDATE SET
    due = CASE WHEN token IS NULL THEN min(due, excluded.due) ELSE excluded.due END, held_until = 0, token = NULL;

-- name: next_is
-- After an outcome: this advance and no other.
INSERT INTO {p}advances (job_id, due) VALUES (:job_id, :due)
ON CONFLICT (job_id) DO UPDATE SET due = excluded.due, held_until = 0, token = NULL;

-- name: take_advances
UPDATE {p}advances SET held_until = :until, token = :token || '-' || job_id
WHERE job_id IN (SELECT job_id FROM {p}advances WHERE due <= :now AND held_until <= :now ORDER BY due LIMIT :limit)
RETURNING due, job_id, token;

-- name: due_advance
-- An idle worker asks this often; it takes no lock.
SELECT 1 FROM {p}advances WHERE due <= :now AND held_until <= :now LIMIT 1;

-- name: drop_advance
DELETE FROM {p}advances WHERE job_id = :job_id AND token = :token;

-- name: delete_advance
DELETE FROM {p}advances WHERE job_id = :job_id;

-- name: next_advance
SELECT min(max(due, held_until)) FROM {p}advances WHERE :job_id IS NULL OR job_id = :job_id;
