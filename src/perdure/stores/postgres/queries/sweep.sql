-- name: list_unsettled_children
-- The runs that a run has started and that have not settled. Forks are nobody's children.
SELECT id FROM perdure.run WHERE parent_run = %(id)s AND forked = 0 AND status IN ('pending', 'running', 'waiting', 'interrupted') ORDER BY seq

-- name: list_expired_leases
-- Running runs whose lease has ended, the longest first.
SELECT id, epoch FROM perdure.run WHERE status = 'running' AND lease_expires_at <= %(now)s ORDER BY lease_expires_at, seq LIMIT %(limit)s

-- name: list_expired_waits
-- Open rows past their end. One that fails its run stays open until the run waits; an effect of unknown outcome never expires.
SELECT w.id, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.expires_at <= %(now)s AND w.kind <> 'effect' AND (w.on_expiry <> 'fail' OR w.kind = 'timer' OR r.status = 'waiting')
ORDER BY w.expires_at, w.id LIMIT %(limit)s

-- name: list_passed_deadlines
-- Runs that nobody runs and whose deadline has passed; a running one is its owner's to stop.
SELECT id FROM perdure.run
WHERE deadline IS NOT NULL AND deadline <= %(now)s AND status IN ('pending', 'interrupted', 'waiting') ORDER BY deadline, seq LIMIT %(limit)s

-- name: next_due
-- The next moment at which the sweep has something to do.
SELECT min(at) AS at FROM (
    SELECT min(lease_expires_at) AS at FROM perdure.run WHERE status = 'running'
    UNION ALL SELECT min(deadline) FROM perdure.run WHERE deadline IS NOT NULL AND status IN ('pending', 'interrupted', 'waiting')
    UNION ALL (
        SELECT w.expires_at FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
        WHERE w.resolved_at IS NULL AND w.expires_at IS NOT NULL AND w.kind <> 'effect'
            AND (w.on_expiry <> 'fail' OR w.kind = 'timer' OR r.status = 'waiting')
        ORDER BY w.expires_at LIMIT 1
    )
) AS due
