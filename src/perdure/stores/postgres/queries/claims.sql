-- name: list_claimed
-- The runs that a claim with this token took.
SELECT r.*, b.trigger, b.budget, b.labels, b.output, b.error FROM perdure.run r JOIN perdure.run_body b ON b.run = r.seq WHERE r.claim_token = %(token)s ORDER BY r.seq

-- name: make_due
-- Runs whose time has come join those that can be claimed.
-- Some at a time, and none that another claim is at.
UPDATE perdure.run SET due_at = NULL
WHERE seq = ANY (ARRAY(SELECT seq FROM perdure.run WHERE due_at <= %(now)s ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED))

-- name: list_claimable
-- The first runs of an agent that may be claimed now, in the order of the claim.
-- Of the runs that share a concurrency key only one is listed: begun before not begun, then in order of admission, among those that could be claimed too.
SELECT c.seq, c.id, c.agent, c.status, c.priority, c.executions, c.concurrency_key, c.thread
FROM perdure.run c
WHERE c.agent = %(agent)s AND c.status IN ('pending', 'interrupted') AND c.due_at IS NULL AND c.format <= %(format)s
    AND (c.agent = ANY (ARRAY(SELECT jsonb_array_elements_text(%(roomy)s::jsonb))) OR EXISTS (SELECT 1 FROM perdure.hold h WHERE h.run = c.seq AND h.kind = 'agent'))
    AND NOT EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'thread' AND h.name = c.thread AND h.run <> c.seq)
    AND NOT EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'key' AND h.name = c.concurrency_key AND h.run <> c.seq)
    AND NOT EXISTS (
        SELECT 1 FROM perdure.run m
        WHERE m.concurrency_key = c.concurrency_key AND m.status IN ('pending', 'interrupted') AND m.due_at IS NULL AND m.format <= %(format)s
            AND ((m.executions = 0), m.seq) < ((c.executions = 0), c.seq)
            AND m.agent = ANY (ARRAY(SELECT jsonb_array_elements_text(%(agents)s::jsonb)))
            AND (m.agent = ANY (ARRAY(SELECT jsonb_array_elements_text(%(roomy)s::jsonb))) OR EXISTS (SELECT 1 FROM perdure.hold h WHERE h.run = m.seq AND h.kind = 'agent'))
            AND NOT EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'thread' AND h.name = m.thread AND h.run <> m.seq)
    )
ORDER BY (c.status = 'pending'), (-c.priority), (c.executions = 0), c.seq
LIMIT %(limit)s
FOR UPDATE OF c SKIP LOCKED

-- name: find_claimable
-- One run, if it may be claimed now by the rules of `list_claimable`.
SELECT c.seq, c.id, c.agent, c.status, c.priority, c.executions, c.concurrency_key, c.thread
FROM perdure.run c
WHERE c.id = %(run_id)s AND c.agent = %(agent)s AND c.status IN ('pending', 'interrupted') AND c.due_at IS NULL AND c.format <= %(format)s
    AND (c.agent = ANY (ARRAY(SELECT jsonb_array_elements_text(%(roomy)s::jsonb))) OR EXISTS (SELECT 1 FROM perdure.hold h WHERE h.run = c.seq AND h.kind = 'agent'))
    AND NOT EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'thread' AND h.name = c.thread AND h.run <> c.seq)
    AND NOT EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'key' AND h.name = c.concurrency_key AND h.run <> c.seq)
    AND NOT EXISTS (
        SELECT 1 FROM perdure.run m
        WHERE m.concurrency_key = c.concurrency_key AND m.status IN ('pending', 'interrupted') AND m.due_at IS NULL AND m.format <= %(format)s
            AND ((m.executions = 0), m.seq) < ((c.executions = 0), c.seq)
            AND m.agent = ANY (ARRAY(SELECT jsonb_array_elements_text(%(agents)s::jsonb)))
            AND (m.agent = ANY (ARRAY(SELECT jsonb_array_elements_text(%(roomy)s::jsonb))) OR EXISTS (SELECT 1 FROM perdure.hold h WHERE h.run = m.seq AND h.kind = 'agent'))
            AND NOT EXISTS (SELECT 1 FROM perdure.hold h WHERE h.kind = 'thread' AND h.name = m.thread AND h.run <> m.seq)
    )
FOR UPDATE OF c SKIP LOCKED

-- name: list_places
-- Who has the places of an agent with a limit.
SELECT slot, run FROM perdure.hold WHERE kind = 'agent' AND name = %(agent)s

-- name: take_hold
-- The row of the run that holds this, where that is this run; `taken` where it is so only now.
INSERT INTO perdure.hold (kind, name, slot, run, taken) VALUES (%(kind)s, %(name)s, %(slot)s, %(run)s, 1)
ON CONFLICT (kind, name, slot) DO UPDATE SET taken = 0 WHERE hold.run = excluded.run
RETURNING taken

-- name: drop_hold
-- A hold that was taken a moment ago by a claim that then could not have the run.
DELETE FROM perdure.hold WHERE kind = %(kind)s AND name = %(name)s AND slot = %(slot)s AND run = %(run)s

-- name: drop_holds
-- A run that has ended gives everything back.
DELETE FROM perdure.hold WHERE run = %(run)s

-- name: drop_holds_but_thread
-- A run that waits keeps its thread, nothing else.
DELETE FROM perdure.hold WHERE run = %(run)s AND kind <> 'thread'

-- name: renew
-- Push the expiry of every lease that is still held. A lease is [run id, epoch, token, activity].
UPDATE perdure.run SET lease_expires_at = %(expires_at)s, activity = l.value ->> 3 FROM jsonb_array_elements(%(leases)s::jsonb) l
WHERE run.id = l.value ->> 0 AND run.status = 'running' AND run.epoch = (l.value ->> 1)::bigint AND run.claim_token = l.value ->> 2

-- name: list_leases
-- What the owners of leases are told.
SELECT id, status, epoch, claim_token, cancel_requested FROM perdure.run WHERE id IN (SELECT l.value ->> 0 FROM jsonb_array_elements(%(leases)s::jsonb) l)
