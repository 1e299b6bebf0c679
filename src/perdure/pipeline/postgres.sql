-- What the pipeline's Postgres storage has of its own, beside jobs.sql. {s} is the schema, {i} what stands before each index's name.

-- name: schema
-- A checkpoint that is a phase's beginning is stored once, in entries; `jobs.entry` points to it. One that was saved later is in `jobs.checkpoint`.
-- `mark` names the last write, so that one whose answer was lost is known when it is repeated. Texts are JSON as text: jsonb would not keep every string.
CREATE SCHEMA IF NOT EXISTS {s};
CREATE TABLE IF NOT EXISTS {p}meta (schema integer NOT NULL);
CREATE TABLE IF NOT EXISTS {p}jobs (
    job_id      text COLLATE "C" PRIMARY KEY,
    status      text NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'running', 'paused', 'complete', 'error')),
    error       text,
    entry       text,
    checkpoint  text,
    output      text,
    version     bigint NOT NULL DEFAULT 0,
    lease_until double precision,
    deaths      integer NOT NULL DEFAULT 0,
    progress    text,
    updated_at  double precision,
    mark        text
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS {i}jobs_status ON {p}jobs (status, job_id);
CREATE TABLE IF NOT EXISTS {p}entries (
    job_id     text COLLATE "C" NOT NULL,
    phase      text NOT NULL,
    checkpoint text NOT NULL,
    PRIMARY KEY (job_id, phase)
);
CREATE TABLE IF NOT EXISTS {p}log (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    entry  text NOT NULL,
    mark   text
);
CREATE INDEX IF NOT EXISTS {i}log_job ON {p}log (job_id, id);
CREATE UNIQUE INDEX IF NOT EXISTS {i}log_mark ON {p}log (mark) WHERE mark IS NOT NULL;
CREATE TABLE IF NOT EXISTS {p}advances (
    job_id     text COLLATE "C" PRIMARY KEY,
    due        double precision NOT NULL,
    held_until double precision NOT NULL DEFAULT 0,
    token      text
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS {i}advances_due ON {p}advances (due);
CREATE INDEX IF NOT EXISTS {i}advances_token ON {p}advances (token) WHERE token IS NOT NULL;

-- name: commit_outcome
-- One statement, so one round trip and all or nothing. The version in the condition is what keeps a late writer out; everything else hangs on the row
-- that `moved` answers. With `:lease` the job is claimed again in the same breath, unless it was paused. The last line is for a repeated call whose first
-- one did its work: in the first it finds nothing, because it sees what was there before.
WITH moved AS (
    UPDATE {p}jobs SET
        status      = coalesce(:status, status),
        error       = CASE WHEN CAST(:status AS text) IS NULL THEN error ELSE :error END,
        entry       = CASE WHEN CAST(:moved AS boolean) THEN :entry ELSE entry END,
        checkpoint  = CASE WHEN CAST(:moved AS boolean) THEN :checkpoint ELSE checkpoint END,
        output      = CASE WHEN CAST(:gave AS boolean) THEN :output ELSE output END,
        progress    = CASE WHEN CAST(:shown AS boolean) THEN :progress WHEN CAST(:hold AS boolean) THEN progress END,
        version     = version + CASE WHEN CAST(:hold AS boolean) THEN 0 WHEN {goes_on} THEN 2 ELSE 1 END,
        lease_until = CASE WHEN CAST(:hold AS boolean) THEN lease_until WHEN {goes_on} THEN {now} + CAST(:lease AS double precision) END,
        deaths      = CASE WHEN CAST(:hold AS boolean) THEN deaths ELSE 0 END,
        updated_at  = {now},
        mark        = :mark
    WHERE job_id = :job_id AND version = :version AND mark IS DISTINCT FROM :mark
    RETURNING job_id, version, lease_until IS NOT NULL AS held
), log_cleared AS (
    DELETE FROM {p}log WHERE CAST(:clear_log AS boolean) AND job_id IN (SELECT job_id FROM moved)
), entries_cleared AS (
    -- Not the one that is put below: one statement can change a row only once.
    DELETE FROM {p}entries
    WHERE CAST(:new_life AS boolean) AND job_id IN (SELECT job_id FROM moved) AND phase IS DISTINCT FROM CAST(:entry AS text)
), entered AS (
    INSERT INTO {p}entries (job_id, phase, checkpoint)
    SELECT job_id, CAST(:entry AS text), CAST(:reached AS text) FROM moved WHERE CAST(:entry AS text) IS NOT NULL
    ON CONFLICT (job_id, phase) DO UPDATE SET checkpoint = excluded.checkpoint
), logged AS (
    INSERT INTO {p}log (job_id, entry)
    SELECT job_id, line FROM moved, unnest(CAST(:log AS text[])) WITH ORDINALITY AS lines (line, n) ORDER BY n
), advanced AS (
    INSERT INTO {p}advances AS a (job_id, due)
    SELECT job_id, {now} + CASE WHEN held AND NOT CAST(:hold AS boolean) THEN CAST(:lease AS double precision) ELSE CAST(:delay AS double precision) END
    FROM moved WHERE CAST(:delay AS double precision) IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE SET
        due = CASE WHEN CAST(:hold AS boolean) AND a.token IS NULL AND a.due < excluded.due THEN a.due ELSE excluded.due END, held_until = 0, token = NULL
    -- A worker that keeps the job has an advance of it, which is good for a while yet: mostly nothing is written.
    WHERE NOT EXISTS (SELECT 1 FROM moved WHERE held AND NOT CAST(:hold AS boolean))
        OR greatest(a.due, a.held_until) < {now} + CAST(:lease AS double precision) / 2
), dropped AS (
    DELETE FROM {p}advances
    WHERE CAST(:delay AS double precision) IS NULL AND NOT CAST(:hold AS boolean) AND job_id IN (SELECT job_id FROM moved)
)
SELECT version, held, {now} AS now FROM moved
UNION ALL
SELECT version, lease_until IS NOT NULL, {now} FROM {p}jobs WHERE job_id = :job_id AND mark = :mark

-- name: claim_job
UPDATE {p}jobs SET
    version = version + 1, deaths = deaths + CASE WHEN lease_until IS NULL THEN 0 ELSE 1 END, lease_until = {now} + :lease, updated_at = {now}, mark = :mark
WHERE job_id = :job_id AND status = 'running' AND coalesce(checkpoint, entry) IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})

-- name: is_marked
-- Whether this very write, or an earlier sending of it, is the last one.
SELECT 1 AS marked FROM {p}jobs WHERE job_id = :job_id AND mark = :mark

-- name: append_log
INSERT INTO {p}log (job_id, entry, mark) VALUES (:job_id, :line, :mark) ON CONFLICT (mark) WHERE mark IS NOT NULL DO NOTHING

-- name: take_advances
-- What another worker is taking at this moment is passed over. A repeated call takes no more than its first sending did.
UPDATE {p}advances SET held_until = {now} + :hold, token = :token
WHERE job_id = ANY (ARRAY(
    SELECT job_id FROM {p}advances
    WHERE due <= {now} AND held_until <= {now} AND NOT EXISTS (SELECT 1 FROM {p}advances WHERE token = :token)
    ORDER BY due LIMIT :limit FOR UPDATE SKIP LOCKED
))

-- name: list_taken
SELECT job_id FROM {p}advances WHERE token = :token ORDER BY due, job_id
