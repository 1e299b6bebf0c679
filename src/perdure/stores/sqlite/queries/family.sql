-- name: list_line
-- A run and those above it, up to the eldest of its family, with their budgets; and whether it has children itself. A fork begins a family of its own.
-- A parent was admitted before its child: an id that was forgotten and used again makes no circle.
WITH RECURSIVE line (depth, id, seq, parent_run, forked) AS (
    SELECT 0, r.id, r.seq, r.parent_run, r.forked FROM run r WHERE r.id = :id
    UNION ALL
    SELECT line.depth + 1, p.id, p.seq, p.parent_run, p.forked FROM line JOIN run p ON p.id = line.parent_run AND p.seq < line.seq WHERE line.forked = 0
)
SELECT line.id, b.budget, line.depth = 0 AND EXISTS (SELECT 1 FROM run c WHERE c.parent_run = line.id AND c.forked = 0) AS parent
FROM line JOIN run_body b ON b.run = line.seq ORDER BY line.depth

-- name: list_family
-- A run and all that it started, however deep, each with what it has spent and with its reservations.
WITH RECURSIVE kin (id, seq) AS (
    SELECT r.id, r.seq FROM run r WHERE r.id = :id
    UNION ALL
    SELECT c.id, c.seq FROM kin JOIN run c ON c.parent_run = kin.id AND c.seq > kin.seq WHERE c.forked = 0
)
SELECT r.id, r.parent_run, r.status, r.epoch, r.usage, b.budget, v.epoch AS taken, v.step, v.tokens, v.cost
FROM kin JOIN run r ON r.seq = kin.seq JOIN run_body b ON b.run = kin.seq LEFT JOIN reservation v ON v.run = kin.seq
ORDER BY r.seq, v.epoch, v.step

-- name: add_reservation
-- Room for one model call.
INSERT INTO reservation (run, epoch, step, tokens, cost) VALUES (:run, :epoch, :step, :tokens, :cost) ON CONFLICT (run, epoch, step) DO NOTHING

-- name: drop_reservation
-- The real figure stands in its place, or the call was not made.
DELETE FROM reservation WHERE run = :run AND epoch = :epoch

-- name: list_room_waits
-- Open rows of a family that wait for room under a budget that it shares.
SELECT w.id, w.seq, r.id AS run_id FROM wait w JOIN run r ON r.seq = w.run
WHERE w.name = :family AND w.kind = 'budget' AND w.resolved_at IS NULL ORDER BY r.id, w.seq
