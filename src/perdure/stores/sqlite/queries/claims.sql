-- name: list_claimed
-- The runs that a claim with this token took.
SELECT r.*, b.trigger, b.budget, b.labels, b.output, b.error FROM run r JOIN run_body b ON b.run = r.seq WHERE r.claim_token = :token ORDER BY r.seq

-- name: make_due
-- Runs whose time has come join those that can be claimed.
UPDATE run SET due_at = NULL WHERE due_at <= :now

-- name: list_claimable
-- The first runs of an agent that may be claimed now, in the order of the claim.
-- Of the runs that share a concurrency key only one is listed: begun before not begun, then in order of admission, among those that could be claimed too.
SELECT c.seq, c.id, c.agent, c.status, c.priority, c.executions, c.concurrency_key, c.thread
FROM run c
WHERE c.agent = :agent AND c.status IN ('pending', 'interrupted') AND c.due_at IS NULL AND c.format <= :format
    AND (c.agent IN (SELECT value FROM json_each(:roomy)) OR EXISTS (SELECT 1 FROM hold h WHERE h.run = c.seq AND h.kind = 'agent'))
    AND NOT EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'thread' AND h.name = c.thread AND h.run <> c.seq)
    AND NOT EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'key' AND h.name = c.concurrency_key AND h.run <> c.seq)
    AND NOT EXISTS (
        SELECT 1 FROM run m
        WHERE m.concurrency_key = c.concurrency_key AND m.status IN ('pending', 'interrupted') AND m.due_at IS NULL AND m.format <= :format
            AND ((m.executions = 0), m.seq) < ((c.executions = 0), c.seq)
            AND m.agent IN (SELECT value FROM json_each(:agents))
            AND (m.agent IN (SELECT value FROM json_each(:roomy)) OR EXISTS (SELECT 1 FROM hold h WHERE h.run = m.seq AND h.kind = 'agent'))
            AND NOT EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'thread' AND h.name = m.thread AND h.run <> m.seq)
    )
ORDER BY (c.status = 'pending'), (-c.priority), (c.executions = 0), c.seq
LIMIT :limit

-- name: find_claimable
-- One run, if it may be claimed now by the rules of `list_claimable`.
SELECT c.seq, c.id, c.agent, c.status, c.priority, c.executions, c.concurrency_key, c.thread
FROM run c
WHERE c.id = :run_id AND c.agent = :agent AND c.status IN ('pending', 'interrupted') AND c.due_at IS NULL AND c.format <= :format
    AND (c.agent IN (SELECT value FROM json_each(:roomy)) OR EXISTS (SELECT 1 FROM hold h WHERE h.run = c.seq AND h.kind = 'agent'))
    AND NOT EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'thread' AND h.name = c.thread AND h.run <> c.seq)
    AND NOT EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'key' AND h.name = c.concurrency_key AND h.run <> c.seq)
    AND NOT EXISTS (
        SELECT 1 FROM run m
        WHERE m.concurrency_key = c.concurrency_key AND m.status IN ('pending', 'interrupted') AND m.due_at IS NULL AND m.format <= :format
            AND ((m.executions = 0), m.seq) < ((c.executions = 0), c.seq)
            AND m.agent IN (SELECT value FROM json_each(:agents))
            AND (m.agent IN (SELECT value FROM json_each(:roomy)) OR EXISTS (SELECT 1 FROM hold h WHERE h.run = m.seq AND h.kind = 'agent'))
            AND NOT EXISTS (SELECT 1 FROM hold h WHERE h.kind = 'thread' AND h.name = m.thread AND h.run <> m.seq)
    )

-- name: list_places
-- Who has the places of an agent with a limit.
SELECT slot, run FROM hold WHERE kind = 'agent' AND name = :agent

-- name: take_hold
-- The row of the run that holds this, where that is this run; `taken` where it is so only now.
INSERT INTO hold (kind, name, slot, run, taken) VALUES (:kind, :name, :slot, :run, 1)
ON CONFLICT (kind, name, slot) DO UPDATE SET taken = 0 WHERE hold.run = excluded.run
RETURNING taken

-- name: drop_hold
-- A hold that was taken a moment ago by a claim that then could not have the run.
DELETE FROM hold WHERE kind = :kind AND name = :name AND slot = :slot AND run = :run

-- name: drop_holds
-- A run that has ended gives everything back.
DELETE FROM hold WHERE run = :run

-- name: drop_holds_but_thread
-- A run that waits keeps its thread, nothing else.
DELETE FROM hold WHERE run = :run AND kind <> 'thread'

-- name: renew
-- Push the expiry of every lease that is still held. A lease is [run id, epoch, token, activity].
UPDATE run SET lease_expires_at = :expires_at, activity = json_extract(l.value, '$[3]') FROM json_each(:leases) l
WHERE run.id = json_extract(l.value, '$[0]') AND run.status = 'running' AND run.epoch = json_extract(l.value, '$[1]')
    AND run.claim_token = json_extract(l.value, '$[2]')

-- name: list_leases
-- What the owners of leases are told.
SELECT id, status, epoch, claim_token, cancel_requested FROM run WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:leases))

-- name: foreign_lease
-- A live lease of another machine.
SELECT lease_host, lease_expires_at FROM run INDEXED BY run_lease WHERE status = 'running' AND lease_expires_at > :now AND lease_host <> :host LIMIT 1
