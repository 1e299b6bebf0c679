-- name: clock
-- The store's clock: the database's, and what a test has added to it.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + value AS now FROM perdure.meta WHERE name = 'clock_offset'

-- name: move_clock
-- Tests move the clock of every process on this database at once.
UPDATE perdure.meta SET value = value + %(micros)s WHERE name = 'clock_offset'

-- name: lock_run
-- What a commit that ends and opens nothing must know of its run. Everybody locks the run first.
SELECT
    id, seq, status, epoch, claim_token, commit_no, first_event, ended, lease_owner, cancel_requested, generation, deaths, next_event, next_step,
    tail_base, tail_idx, tail_length, tail_shared, usage, format, version
FROM perdure.run WHERE id = %(id)s FOR UPDATE

-- name: expect_run
-- Locks a run, and refuses the transaction unless the row and the clock are as a commit expects them. All else in the row only commits can change.
-- Read after the lock was granted: whoever waited for it finds the clock too far on.
-- Found by its id alone, and compared outside: statistics from an hour when nothing ran would promise that the index of what runs is as short.
SELECT CASE WHEN count(*) FILTER (
    WHERE run.status = %(status)s AND run.epoch = %(epoch)s AND run.claim_token = %(claim_token)s AND run.commit_no = %(commit_no)s
        AND run.next_event = %(next_event)s AND run.next_step = %(next_step)s AND run.cancel_requested = %(cancel_requested)s
) = 1 AND abs(max(clock.now) - %(now)s) <= %(off_max)s THEN 0
    ELSE ('perdure: this run was told something, so its owner asks again, after ' || count(*))::integer END AS refused
FROM (
    SELECT status, epoch, claim_token, commit_no, next_event, next_step, cancel_requested FROM perdure.run WHERE id = %(id)s FOR UPDATE
) AS run
CROSS JOIN LATERAL (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + value AS now FROM perdure.meta WHERE name = 'clock_offset'
) AS clock

-- name: get_run
-- A run with what it was given and what it answered.
SELECT r.*, b.trigger, b.budget, b.labels, b.output, b.error FROM perdure.run r JOIN perdure.run_body b ON b.run = r.seq WHERE r.id = %(id)s

-- name: get_run_at
-- The same, by the short number.
SELECT r.*, b.trigger, b.budget, b.labels, b.output, b.error FROM perdure.run r JOIN perdure.run_body b ON b.run = r.seq WHERE r.seq = %(seq)s

-- name: get_kin
-- What a descendant must know of a run: whether it holds this thread, and who its own parent is. It can't be forgotten meanwhile.
SELECT id, parent_run, forked, EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'thread' AND h.name = %(thread)s AND h.run = run.seq) AS holds
FROM perdure.run WHERE id = %(id)s FOR SHARE

-- name: save_run
-- Every column of a run that may change.
UPDATE perdure.run SET
    status = %(status)s, head = %(head)s, head_generation = %(head_generation)s, format = %(format)s, version = %(version)s, epoch = %(epoch)s, claim_token = %(claim_token)s, commit_no = %(commit_no)s,
    first_event = %(first_event)s, ended = %(ended)s, lease_owner = %(lease_owner)s, lease_host = %(lease_host)s, lease_expires_at = %(lease_expires_at)s, activity = %(activity)s,
    cancel_requested = %(cancel_requested)s, generation = %(generation)s, executions = %(executions)s, deaths = %(deaths)s, settlement = %(settlement)s,
    next_event = %(next_event)s, next_step = %(next_step)s, tail_base = %(tail_base)s, tail_idx = %(tail_idx)s, tail_length = %(tail_length)s,
    tail_shared = %(tail_shared)s, usage = %(usage)s, finish_reason = %(finish_reason)s, updated_at = %(updated_at)s,
    available_at = %(available_at)s, due_at = %(due_at)s, started_at = %(started_at)s, finished_at = %(finished_at)s, deadline = %(deadline)s
WHERE seq = %(seq)s

-- name: save_commit
-- What a commit that ends nothing changes on its run.
UPDATE perdure.run SET
    commit_no = %(commit_no)s, first_event = %(first_event)s, deaths = %(deaths)s, next_event = %(next_event)s, next_step = %(next_step)s, tail_base = %(tail_base)s,
    tail_idx = %(tail_idx)s, tail_length = %(tail_length)s, tail_shared = %(tail_shared)s, usage = %(usage)s, format = %(format)s, version = %(version)s, updated_at = %(updated_at)s
WHERE seq = %(seq)s

-- name: save_body
-- What a settle, a retry or a top-up changes of a run's long columns.
UPDATE perdure.run_body SET budget = %(budget)s, output = %(output)s, error = %(error)s WHERE run = %(run)s

-- name: add_run
-- A run as it is admitted.
INSERT INTO perdure.run (
    id, agent, status, priority, concurrency_key, thread, trigger_key, parent_run, parent_wait, forked, format, usage, created_at, updated_at,
   
    available_at, due_at, deadline, next_event, tail_base, tail_idx, tail_length
) VALUES (
    %(id)s, %(agent)s, %(status)s, %(priority)s, %(concurrency_key)s, %(thread)s, %(trigger_key)s, %(parent_run)s, %(parent_wait)s, %(forked)s, %(format)s, %(usage)s, %(created_at)s, %(created_at)s,
    %(available_at)s, %(due_at)s, %(deadline)s, %(next_event)s, %(tail_base)s, %(tail_idx)s, %(tail_length)s
) ON CONFLICT (id) DO NOTHING RETURNING seq

-- name: add_body
-- What the run was given.
INSERT INTO perdure.run_body (run, trigger, budget, labels) VALUES (%(run)s, %(trigger)s, %(budget)s, %(labels)s)

-- name: add_label
-- One label, where lists look for it.
INSERT INTO perdure.label (name, value, run) VALUES (%(name)s, %(value)s, %(run)s)

-- name: find_key
-- What a trigger's key stands for.
SELECT * FROM perdure.trigger_key WHERE agent = %(agent)s AND key = %(key)s

-- name: take_key
-- The key stands for this run from now on; no row where it still stands for another one.
INSERT INTO perdure.trigger_key (agent, key, run_id, payload_hash, retention) VALUES (%(agent)s, %(key)s, %(run_id)s, %(payload_hash)s, %(retention)s)
ON CONFLICT (agent, key) DO UPDATE SET
    run_id = excluded.run_id, payload_hash = excluded.payload_hash, retention = excluded.retention, expires_at = NULL, status = NULL
WHERE trigger_key.expires_at <= %(now)s
RETURNING run_id

-- name: date_key
-- The key answers for its retention after the run has settled; not at all limited (NULL) while the run lives.
UPDATE perdure.trigger_key SET expires_at = %(now)s::bigint + retention WHERE agent = %(agent)s AND key = %(key)s AND run_id = %(run_id)s

-- name: has_artifact
-- Whether these bytes are stored.
SELECT id FROM perdure.artifact WHERE id = %(id)s

-- name: hold_head
-- The run whose history a thread's next run starts from. It can't change before this transaction ends.
SELECT run_id FROM perdure.thread_head WHERE thread = %(thread)s FOR UPDATE

-- name: get_head
-- The same, to read.
SELECT run_id FROM perdure.thread_head WHERE thread = %(thread)s

-- name: put_head
-- A completed turn becomes its thread's head.
INSERT INTO perdure.thread_head (thread, run_id) VALUES (%(thread)s, %(run_id)s) ON CONFLICT (thread) DO UPDATE SET run_id = excluded.run_id
