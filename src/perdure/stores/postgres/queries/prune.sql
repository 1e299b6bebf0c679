-- name: list_prunable
-- Settled runs that ended in a span of time and that nothing needs any more: no fork, child or ancestor, no thread, no person, no business key.
SELECT c.id, c.seq, c.finished_at FROM perdure.run c
WHERE c.finished_at IS NOT NULL AND c.finished_at BETWEEN %(after)s AND %(before)s AND (%(agent)s::text IS NULL OR c.agent = %(agent)s)
    AND c.status = ANY (ARRAY(SELECT jsonb_array_elements_text(%(statuses)s::jsonb))) AND c.seq < (SELECT max(seq) FROM perdure.run)
    AND NOT EXISTS (SELECT 1 FROM perdure.wait w WHERE w.run = c.seq AND w.resolved_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM perdure.run k WHERE k.parent_run = c.id AND (k.forked = 1 OR k.status IN ('pending', 'running', 'waiting', 'interrupted')))
    AND NOT EXISTS (
        WITH RECURSIVE above (seq, id, forked, parent_run, status) AS (
            SELECT p.seq, p.id, p.forked, p.parent_run, p.status FROM perdure.run p WHERE c.forked = 0 AND p.id = c.parent_run AND p.seq < c.seq
            UNION ALL SELECT p.seq, p.id, p.forked, p.parent_run, p.status FROM above JOIN perdure.run p ON p.id = above.parent_run AND p.seq < above.seq WHERE above.forked = 0
        )
        SELECT 1 FROM above WHERE above.status IN ('pending', 'running', 'waiting', 'interrupted')
    )
    AND NOT EXISTS (SELECT 1 FROM perdure.thread_head t WHERE t.thread = c.thread AND t.run_id = c.id)
    AND NOT EXISTS (SELECT 1 FROM perdure.run h WHERE h.thread = c.thread AND h.head = c.id AND h.status <> 'completed')
    AND NOT EXISTS (
        SELECT 1 FROM perdure.effect e WHERE e.run = c.seq AND e.claim IS NOT NULL AND e.claim NOT LIKE 'run:%' AND e.state IN ('started', 'done', 'unknown')
    )
ORDER BY c.finished_at, c.seq LIMIT %(limit)s

-- name: keep_key
-- What the key of a forgotten run still knows.
UPDATE perdure.trigger_key SET status = (SELECT status FROM perdure.run WHERE seq = %(run)s) WHERE agent = %(agent)s AND key = %(key)s AND run_id = %(id)s

-- name: drop_tokens_of
DELETE FROM perdure.wait_token WHERE wait IN (SELECT seq FROM perdure.wait WHERE run = %(run)s)

-- name: drop_waits_of
DELETE FROM perdure.wait WHERE run = %(run)s

-- name: drop_effects_of
DELETE FROM perdure.effect WHERE run = %(run)s

-- name: drop_reservations_of
DELETE FROM perdure.reservation WHERE run = %(run)s

-- name: drop_signals_of
DELETE FROM perdure.signal WHERE run = %(run)s

-- name: drop_events_of
DELETE FROM perdure.event WHERE run = %(run)s

-- name: drop_steps_of
DELETE FROM perdure.step WHERE run = %(run)s

-- name: drop_checkpoints_of
DELETE FROM perdure.checkpoint WHERE run = %(run)s

-- name: drop_messages_of
DELETE FROM perdure.message WHERE run = %(run)s

-- name: drop_label
DELETE FROM perdure.label WHERE name = %(name)s AND value = %(value)s AND run = %(run)s

-- name: drop_body
DELETE FROM perdure.run_body WHERE run = %(run)s

-- name: drop_run
DELETE FROM perdure.run WHERE seq = %(run)s

-- name: drop_expired_keys
-- Keys whose retention is over.
DELETE FROM perdure.trigger_key WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM perdure.trigger_key WHERE expires_at <= %(now)s ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)) RETURNING key
