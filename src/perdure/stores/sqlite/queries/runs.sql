-- name: clock_offset
-- What a test has added to the machine's clock.
SELECT value FROM meta WHERE name = 'clock_offset'

-- name: move_clock
-- Tests move the clock of every process on this file at once.
UPDATE meta SET value = value + :micros WHERE name = 'clock_offset'

-- name: lock_run
-- What a commit that ends and opens nothing must know of its run. The write lock is the transaction's.
SELECT
    id, seq, status, epoch, claim_token, commit_no, first_event, ended, lease_owner, cancel_requested, generation, deaths, next_event, next_step,
    tail_base, tail_idx, tail_length, tail_shared, usage, format, version
FROM run WHERE id = :id

-- name: get_run
-- A run with what it was given and what it answered.
SELECT r.*, b.trigger, b.budget, b.labels, b.output, b.error FROM run r JOIN run_body b ON b.run = r.seq WHERE r.id = :id

-- name: get_run_at
-- The same, by the short number.
SELECT r.*, b.trigger, b.budget, b.labels, b.output, b.error FROM run r JOIN run_body b ON b.run = r.seq WHERE r.seq = :seq

-- name: get_kin
-- What a descendant must know of a run: whether it holds this thread, and who its own parent is.
SELECT id, parent_run, forked, EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'thread' AND h.name = :thread AND h.run = run.seq) AS holds
FROM run WHERE id = :id

-- name: save_run
-- Every column of a run that may change.
UPDATE run SET
    status = :status, head = :head, head_generation = :head_generation, format = :format, version = :version, epoch = :epoch, claim_token = :claim_token, commit_no = :commit_no,
    first_event = :first_event, ended = :ended, lease_owner = :lease_owner, lease_host = :lease_host, lease_expires_at = :lease_expires_at, activity = :activity,
    cancel_requested = :cancel_requested, generation = :generation, executions = :executions, deaths = :deaths, settlement = :settlement,
    next_event = :next_event, next_step = :next_step, tail_base = :tail_base, tail_idx = :tail_idx, tail_length = :tail_length,
    tail_shared = :tail_shared, usage = :usage, finish_reason = :finish_reason, updated_at = :updated_at,
    available_at = :available_at, due_at = :due_at, started_at = :started_at, finished_at = :finished_at, deadline = :deadline
WHERE seq = :seq

-- name: save_commit
-- What a commit that ends nothing changes on its run.
UPDATE run SET
    commit_no = :commit_no, first_event = :first_event, deaths = :deaths, next_event = :next_event, next_step = :next_step, tail_base = :tail_base,
    tail_idx = :tail_idx, tail_length = :tail_length, tail_shared = :tail_shared, usage = :usage, format = :format, version = :version, updated_at = :updated_at
WHERE seq = :seq

-- name: save_body
-- What a settle, a retry or a top-up changes of a run's long columns.
UPDATE run_body SET budget = :budget, output = :output, error = :error WHERE run = :run

-- name: add_run
-- A run as it is admitted.
INSERT INTO run (
    id, agent, status, priority, concurrency_key, thread, trigger_key, parent_run, parent_wait, forked, format, usage, created_at, updated_at,
   
    available_at, due_at, deadline, next_event, tail_base, tail_idx, tail_length
) VALUES (
    :id, :agent, :status, :priority, :concurrency_key, :thread, :trigger_key, :parent_run, :parent_wait, :forked, :format, :usage, :created_at, :created_at,
    :available_at, :due_at, :deadline, :next_event, :tail_base, :tail_idx, :tail_length
) ON CONFLICT (id) DO NOTHING RETURNING seq

-- name: add_body
-- What the run was given.
INSERT INTO run_body (run, trigger, budget, labels) VALUES (:run, :trigger, :budget, :labels)

-- name: add_label
-- One label, where lists look for it.
INSERT INTO label (name, value, run) VALUES (:name, :value, :run)

-- name: find_key
-- What a trigger's key stands for.
SELECT * FROM trigger_key WHERE agent = :agent AND key = :key

-- name: take_key
-- The key stands for this run from now on; no row where it still stands for another one.
INSERT INTO trigger_key (agent, key, run_id, payload_hash, retention) VALUES (:agent, :key, :run_id, :payload_hash, :retention)
ON CONFLICT (agent, key) DO UPDATE SET
    run_id = excluded.run_id, payload_hash = excluded.payload_hash, retention = excluded.retention, expires_at = NULL, status = NULL
WHERE trigger_key.expires_at <= :now
RETURNING run_id

-- name: date_key
-- The key answers for its retention after the run has settled; not at all limited (NULL) while the run lives.
UPDATE trigger_key SET expires_at = :now + retention WHERE agent = :agent AND key = :key AND run_id = :run_id

-- name: has_artifact
-- Whether these bytes are stored.
SELECT id FROM artifact WHERE id = :id

-- name: hold_head
-- The run whose history a thread's next run starts from. It can't change before this transaction ends.
SELECT run_id FROM thread_head WHERE thread = :thread

-- name: get_head
-- The same, to read.
SELECT run_id FROM thread_head WHERE thread = :thread

-- name: put_head
-- A completed turn becomes its thread's head.
INSERT INTO thread_head (thread, run_id) VALUES (:thread, :run_id) ON CONFLICT (thread) DO UPDATE SET run_id = excluded.run_id
