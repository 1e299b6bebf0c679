-- name: list_unsettled_children
-- The runs that a run has started and that have not settled. Forks are nobody's children.
SELECT id FROM run WHERE parent_run = :id AND forked = 0 AND status IN ('pending', 'running', 'waiting', 'interrupted') ORDER BY seq

-- name: list_expired_leases
-- Running runs whose lease has ended, the longest first.
SELECT id, epoch FROM run INDEXED BY run_lease WHERE status = 'running' AND lease_expires_at <= :now ORDER BY lease_expires_at, seq LIMIT :limit

-- name: list_expired_waits
-- Open rows past their end. One that fails its run stays open until the run waits; an effect of unknown outcome never expires.
SELECT w.id, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.resolved_at IS NULL AND w.expires_at <= :now AND w.kind <> 'effect' AND (w.on_expiry <> 'fail' OR w.kind = 'timer' OR r.status = 'waiting')
ORDER BY w.expires_at, w.id LIMIT :limit

-- name: list_passed_deadlines
-- Runs that nobody runs and whose deadline has passed; a running one is its owner's to stop.
SELECT id FROM run INDEXED BY run_deadline
WHERE deadline IS NOT NULL AND deadline <= :now AND status IN ('pending', 'interrupted', 'waiting') ORDER BY deadline, seq LIMIT :limit

-- name: next_due
-- The next moment at which the sweep has something to do.
SELECT min(at) AS at FROM (
    SELECT min(lease_expires_at) AS at FROM run INDEXED BY run_lease WHERE status = 'running'
    UNION ALL SELECT min(deadline) FROM run INDEXED BY run_deadline WHERE deadline IS NOT NULL AND status IN ('pending', 'interrupted', 'waiting')
    UNION ALL SELECT * FROM (
        SELECT w.expires_at FROM wait w JOIN run r ON r.seq = w.run
        WHERE w.resolved_at IS NULL AND w.expires_at IS NOT NULL AND w.kind <> 'effect'
            AND (w.on_expiry <> 'fail' OR w.kind = 'timer' OR r.status = 'waiting')
        ORDER BY w.expires_at LIMIT 1
    )
)
