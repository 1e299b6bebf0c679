-- name: add_wait
-- A wait row: open, or answered at its birth.
INSERT INTO perdure.wait (
    id, run, generation, commit_no, answered, kind, question, idx, tool, tool_call_id, position, effect_key, name, child, input, input_hash, expires_at,
    on_expiry, warn_at, notice_at, data, created_at, resolved_at, resolution
) VALUES (
    %(id)s, %(run)s, %(generation)s, %(commit_no)s, %(answered)s, %(kind)s, %(question)s, %(idx)s, %(tool)s, %(tool_call_id)s, %(position)s, %(effect_key)s, %(name)s, %(child)s, %(input)s,
    %(input_hash)s, %(expires_at)s, %(on_expiry)s, %(warn_at)s, %(notice_at)s, %(data)s, %(created_at)s, %(resolved_at)s, %(resolution)s
)

-- name: save_wait
-- What may change on a wait row.
UPDATE perdure.wait SET
    expires_at = %(expires_at)s, warn_at = %(warn_at)s, resolved_at = %(resolved_at)s, resolution = %(resolution)s, votes = %(votes)s, notified_at = %(notified_at)s,
    warned_at = %(warned_at)s, notice_at = %(notice_at)s, notify_after = %(notify_after)s, notify_tries = %(notify_tries)s
WHERE id = %(id)s

-- name: list_open_waits
-- A run's open rows, of every generation.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run WHERE r.id = %(id)s AND w.resolved_at IS NULL ORDER BY w.seq

-- name: list_current_waits
-- Every row of one generation.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run WHERE w.run = %(run)s AND w.generation = %(generation)s ORDER BY w.seq

-- name: list_waits_of_commit
-- The rows that one commit asked for.
SELECT id, answered FROM perdure.wait WHERE run = %(run)s AND commit_no = %(commit_no)s ORDER BY seq

-- name: list_effect_questions
-- Whether a run is asked about effects of its own.
SELECT id FROM perdure.wait WHERE run = (SELECT seq FROM perdure.run WHERE id = %(id)s) AND resolved_at IS NULL AND kind = 'effect' LIMIT 1

-- name: get_wait
-- One row.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run WHERE w.id = %(id)s

-- name: list_waits_for_run
-- Open rows that this run's settlement resolves.
SELECT w.id, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.seq IN (
    SELECT seq FROM perdure.wait WHERE child = %(run_id)s AND resolved_at IS NULL
    UNION SELECT seq FROM perdure.wait WHERE id = (SELECT parent_wait FROM perdure.run WHERE id = %(run_id)s)
) ORDER BY w.seq

-- name: list_runs_waiting_for
-- The runs that wait for this one, by number: they are locked before it.
SELECT DISTINCT r.seq, r.id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.seq IN (
    SELECT seq FROM perdure.wait WHERE child = %(run_id)s AND resolved_at IS NULL
    UNION SELECT seq FROM perdure.wait WHERE id = (SELECT parent_wait FROM perdure.run WHERE id = %(run_id)s)
) ORDER BY r.seq

-- name: list_waits_for_effect
-- Open rows of other runs that wait for this effect under its business key.
SELECT w.id, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.effect_key = %(key)s AND w.resolved_at IS NULL AND w.kind = 'effect' AND w.run <> %(run)s ORDER BY w.seq

-- name: hold_child
-- The run that a wait row names, or that names the wait row. It can't settle before this transaction ends.
SELECT id FROM perdure.run
WHERE id = coalesce(
    (SELECT id FROM perdure.run WHERE id = %(id)s), (SELECT id FROM perdure.run WHERE parent_run = %(run_id)s AND parent_wait = %(wait_id)s LIMIT 1)
)
FOR SHARE

-- name: list_tokens
-- Hashes of the secrets that were sent for a row.
SELECT t.hash FROM perdure.wait_token t WHERE t.wait = (SELECT seq FROM perdure.wait WHERE id = %(wait_id)s)

-- name: add_token
-- One more secret that may answer the row.
INSERT INTO perdure.wait_token (wait, hash) SELECT seq, %(hash)s::text FROM perdure.wait WHERE id = %(wait_id)s ON CONFLICT DO NOTHING

-- name: list_due_notices
-- Open rows that somebody should be told about by now: that they wait, or once that they soon run out.
SELECT w.*, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.notice_at <= %(now)s ORDER BY w.notice_at, w.seq LIMIT %(limit)s
FOR UPDATE OF w SKIP LOCKED

-- name: hold_notice
-- Nobody else is to send this notice for a while.
UPDATE perdure.wait SET notify_after = %(notify_after)s, notice_at = %(notice_at)s WHERE id = %(id)s

-- name: find_signal
-- Whether this signal was seen.
SELECT seq FROM perdure.signal WHERE run = %(run)s AND id = %(id)s

-- name: count_signals
-- How many the inbox holds for a generation.
SELECT count(*) AS free FROM perdure.signal WHERE run = %(run)s AND taken <> %(generation)s

-- name: add_signal
-- One more, after those that came before.
INSERT INTO perdure.signal (run, seq, id, name, payload, at, taken)
SELECT %(run)s::bigint, coalesce(max(seq), 0) + 1, %(id)s::text, %(name)s::text, %(payload)s::bytea, %(at)s::bigint, %(taken)s::integer FROM perdure.signal WHERE run = %(run)s

-- name: next_signal
-- The oldest signal of this name that the generation has not taken.
SELECT * FROM perdure.signal WHERE run = %(run)s AND name = %(name)s AND taken <> %(generation)s ORDER BY seq LIMIT 1

-- name: take_signal
-- The generation has used it up.
UPDATE perdure.signal SET taken = %(generation)s WHERE run = %(run)s AND seq = %(seq)s
