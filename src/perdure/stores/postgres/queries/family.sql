-- name: list_line
-- A run and those above it, up to the eldest of its family, with their budgets; and whether it has children itself. A fork begins a family of its own.
-- A parent was admitted before its child: an id that was forgotten and used again makes no circle.
WITH RECURSIVE line (depth, id, seq, parent_run, forked) AS (
    SELECT 0, r.id, r.seq, r.parent_run, r.forked FROM perdure.run r WHERE r.id = %(id)s
    UNION ALL
    SELECT line.depth + 1, p.id, p.seq, p.parent_run, p.forked FROM line JOIN perdure.run p ON p.id = line.parent_run AND p.seq < line.seq WHERE line.forked = 0
)
SELECT line.id, b.budget, line.depth = 0 AND EXISTS (SELECT 1 FROM perdure.run c WHERE c.parent_run = line.id AND c.forked = 0) AS parent
FROM line JOIN perdure.run_body b ON b.run = line.seq ORDER BY line.depth

-- name: list_family
-- A run and all that it started, however deep, each with what it has spent and with its reservations.
WITH RECURSIVE kin (id, seq) AS (
    SELECT r.id, r.seq FROM perdure.run r WHERE r.id = %(id)s
    UNION ALL
    SELECT c.id, c.seq FROM kin JOIN perdure.run c ON c.parent_run = kin.id AND c.seq > kin.seq WHERE c.forked = 0
)
SELECT r.id, r.parent_run, r.status, r.epoch, r.usage, b.budget, v.epoch AS taken, v.step, v.tokens, v.cost
FROM kin JOIN perdure.run r ON r.seq = kin.seq JOIN perdure.run_body b ON b.run = kin.seq -- OFFSET keeps the planner from reading all reservations at once, for a family that it believes to be large.
LEFT JOIN LATERAL (SELECT x.epoch, x.step, x.tokens, x.cost FROM perdure.reservation x WHERE x.run = kin.seq OFFSET 0) v ON true
ORDER BY r.seq, v.epoch, v.step

-- name: add_reservation
-- Room for one model call.
INSERT INTO perdure.reservation (run, epoch, step, tokens, cost) VALUES (%(run)s, %(epoch)s, %(step)s, %(tokens)s, %(cost)s) ON CONFLICT (run, epoch, step) DO NOTHING

-- name: drop_reservation
-- The real figure stands in its place, or the call was not made.
DELETE FROM perdure.reservation WHERE run = %(run)s AND epoch = %(epoch)s

-- name: list_room_waits
-- Open rows of a family that wait for room under a budget that it shares.
SELECT w.id, w.seq, r.id AS run_id FROM perdure.wait w JOIN perdure.run r ON r.seq = w.run
WHERE w.name = %(family)s AND w.kind = 'budget' AND w.resolved_at IS NULL ORDER BY r.id, w.seq
