-- name: list_prunable
-- Settled runs that ended in a span of time and that nothing needs any more: no fork, child or ancestor, no thread, no person, no business key.
SELECT c.id, c.seq, c.finished_at FROM run c
WHERE c.finished_at IS NOT NULL AND c.finished_at BETWEEN :after AND :before AND (:agent IS NULL OR c.agent = :agent)
    AND c.status IN (SELECT value FROM json_each(:statuses)) AND c.seq < (SELECT max(seq) FROM run)
    AND NOT EXISTS (SELECT 1 FROM wait w WHERE w.run = c.seq AND w.resolved_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM run k WHERE k.parent_run = c.id AND (k.forked = 1 OR k.status IN ('pending', 'running', 'waiting', 'interrupted')))
    AND NOT EXISTS (
        WITH RECURSIVE above (seq, id, forked, parent_run, status) AS (
            SELECT p.seq, p.id, p.forked, p.parent_run, p.status FROM run p WHERE c.forked = 0 AND p.id = c.parent_run AND p.seq < c.seq
            UNION ALL SELECT p.seq, p.id, p.forked, p.parent_run, p.status FROM above JOIN run p ON p.id = above.parent_run AND p.seq < above.seq WHERE above.forked = 0
        )
        SELECT 1 FROM above WHERE above.status IN ('pending', 'running', 'waiting', 'interrupted')
    )
    AND NOT EXISTS (SELECT 1 FROM thread_head t WHERE t.thread = c.thread AND t.run_id = c.id)
    AND NOT EXISTS (SELECT 1 FROM run h WHERE h.thread = c.thread AND h.head = c.id AND h.status <> 'completed')
    AND NOT EXISTS (
        SELECT 1 FROM effect e WHERE e.run = c.seq AND e.claim IS NOT NULL AND e.claim NOT LIKE 'run:%' AND e.state IN ('started', 'done', 'unknown')
    )
ORDER BY c.finished_at, c.seq LIMIT :limit

-- name: keep_key
-- What the key of a forgotten run still knows.
UPDATE trigger_key SET status = (SELECT status FROM run WHERE seq = :run) WHERE agent = :agent AND key = :key AND run_id = :id

-- name: drop_tokens_of
DELETE FROM wait_token WHERE wait IN (SELECT seq FROM wait WHERE run = :run)

-- name: drop_waits_of
DELETE FROM wait WHERE run = :run

-- name: drop_effects_of
DELETE FROM effect WHERE run = :run

-- name: drop_reservations_of
DELETE FROM reservation WHERE run = :run

-- name: drop_signals_of
DELETE FROM signal WHERE run = :run

-- name: drop_events_of
DELETE FROM event WHERE run = :run

-- name: drop_steps_of
DELETE FROM step WHERE run = :run

-- name: drop_checkpoints_of
DELETE FROM checkpoint WHERE run = :run

-- name: drop_messages_of
DELETE FROM message WHERE run = :run

-- name: drop_label
DELETE FROM label WHERE name = :name AND value = :value AND run = :run

-- name: drop_body
DELETE FROM run_body WHERE run = :run

-- name: drop_run
DELETE FROM run WHERE seq = :run

-- name: drop_expired_keys
-- Keys whose retention is over.
DELETE FROM trigger_key WHERE (agent, key) IN (
    SELECT agent, key FROM trigger_key WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit
) RETURNING key
