-- name: add_wait
-- A wait row: open, or answered at its birth.
INSERT INTO wait (
    id, run, generation, commit_no, answered, kind, question, idx, tool, tool_call_id, position, effect_key, name, child, input, input_hash, expires_at,
    on_expiry, warn_at, notice_at, data, created_at, resolved_at, resolution
) VALUES (
    :id, :run, :generation, :commit_no, :answered, :kind, :question, :idx, :tool, :tool_call_id, :position, :effect_key, :name, :child, :input,
    :input_hash, :expires_at, :on_expiry, :warn_at, :notice_at, :data, :created_at, :resolved_at, :resolution
)

-- name: save_wait
-- What may change on a wait row.
UPDATE wait SET
    expires_at = :expires_at, warn_at = :warn_at, resolved_at = :resolved_at, resolution = :resolution, votes = :votes, notified_at = :notified_at,
    warned_at = :warned_at, notice_at = :notice_at, notify_after = :notify_after, notify_tries = :notify_tries
WHERE id = :id

-- name: list_open_waits
-- A run's open rows, of every generation.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run WHERE r.id = :id AND w.resolved_at IS NULL ORDER BY w.seq

-- name: list_current_waits
-- Every row of one generation.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run WHERE w.run = :run AND w.generation = :generation ORDER BY w.seq

-- name: list_waits_of_commit
-- The rows that one commit asked for.
SELECT id, answered FROM wait WHERE run = :run AND commit_no = :commit_no ORDER BY seq

-- name: list_effect_questions
-- Whether a run is asked about effects of its own.
SELECT id FROM wait WHERE run = (SELECT seq FROM run WHERE id = :id) AND resolved_at IS NULL AND kind = 'effect' LIMIT 1

-- name: get_wait
-- One row.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run WHERE w.id = :id

-- name: list_waits_for_run
-- Open rows that this run's settlement resolves.
SELECT w.id, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.seq IN (
    SELECT seq FROM wait WHERE child = :run_id AND resolved_at IS NULL
    UNION SELECT seq FROM wait WHERE id = (SELECT parent_wait FROM run WHERE id = :run_id)
) ORDER BY w.seq

-- name: list_runs_waiting_for
-- The runs that wait for this one, by number: they are locked before it.
SELECT DISTINCT r.seq, r.id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.seq IN (
    SELECT seq FROM wait WHERE child = :run_id AND resolved_at IS NULL
    UNION SELECT seq FROM wait WHERE id = (SELECT parent_wait FROM run WHERE id = :run_id)
) ORDER BY r.seq

-- name: list_waits_for_effect
-- Open rows of other runs that wait for this effect under its business key.
SELECT w.id, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.effect_key = :key AND w.resolved_at IS NULL AND w.kind = 'effect' AND w.run <> :run ORDER BY w.seq

-- name: hold_child
-- The run that a wait row names, or that names the wait row. It can't settle before this transaction ends.
SELECT id FROM run
WHERE id = coalesce(
    (SELECT id FROM run WHERE id = :id), (SELECT id FROM run WHERE parent_run = :run_id AND parent_wait = :wait_id LIMIT 1)
)

-- name: list_tokens
-- Hashes of the secrets that were sent for a row.
SELECT t.hash FROM wait_token t WHERE t.wait = (SELECT seq FROM wait WHERE id = :wait_id)

-- name: add_token
-- One more secret that may answer the row.
INSERT INTO wait_token (wait, hash) SELECT seq, :hash FROM wait WHERE id = :wait_id ON CONFLICT DO NOTHING

-- name: list_due_notices
-- Open rows that somebody should be told about by now: that they wait, or once that they soon run out.
SELECT w.*, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.notice_at <= :now ORDER BY w.notice_at, w.seq LIMIT :limit

-- name: hold_notice
-- Nobody else is to send this notice for a while.
UPDATE wait SET notify_after = :notify_after, notice_at = :notice_at WHERE id = :id

-- name: find_signal
-- Whether this signal was seen.
SELECT seq FROM signal WHERE run = :run AND id = :id

-- name: count_signals
-- How many the inbox holds for a generation.
SELECT count(*) AS free FROM signal WHERE run = :run AND taken <> :generation

-- name: add_signal
-- One more, after those that came before.
INSERT INTO signal (run, seq, id, name, payload, at, taken)
SELECT :run, coalesce(max(seq), 0) + 1, :id, :name, :payload, :at, :taken FROM signal WHERE run = :run

-- name: next_signal
-- The oldest signal of this name that the generation has not taken.
SELECT * FROM signal WHERE run = :run AND name = :name AND taken <> :generation ORDER BY seq LIMIT 1

-- name: take_signal
-- The generation has used it up.
UPDATE signal SET taken = :generation WHERE run = :run AND seq = :seq
