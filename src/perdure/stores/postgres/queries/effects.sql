-- name: put_effect
-- An effect call in a new state. Who started it, and when, is kept until it is started again.
INSERT INTO perdure.effect (
    run, generation, idx, position, state, tool, tool_call_id, unknown, input, input_hash, result, error, try_no, permit, claim, time_limit, worker, epoch,
    started_at, settled_at, settled_by
) VALUES (
    %(run)s, %(generation)s, %(idx)s, %(position)s, %(state)s, %(tool)s, %(tool_call_id)s, %(unknown)s, %(input)s, %(input_hash)s, %(result)s, %(error)s, %(try_no)s, %(permit)s, %(claim)s,
    %(time_limit)s, %(worker)s, %(epoch)s, %(started_at)s, %(settled_at)s, %(settled_by)s
) ON CONFLICT (run, generation, idx, position) DO UPDATE SET
    state = excluded.state, tool = excluded.tool, tool_call_id = excluded.tool_call_id, unknown = excluded.unknown, input = excluded.input,
    input_hash = excluded.input_hash, result = excluded.result, error = excluded.error, try_no = excluded.try_no, permit = excluded.permit,
    claim = excluded.claim, time_limit = excluded.time_limit,
    worker = CASE WHEN excluded.state = 'started' THEN excluded.worker ELSE effect.worker END,
    epoch = CASE WHEN excluded.state = 'started' THEN excluded.epoch ELSE effect.epoch END,
    started_at = CASE WHEN excluded.state = 'started' THEN excluded.started_at ELSE effect.started_at END,
    settled_at = CASE WHEN excluded.state IN ('started', 'done', 'failed') THEN excluded.settled_at ELSE effect.settled_at END,
    settled_by = CASE WHEN excluded.state = 'started' THEN NULL ELSE effect.settled_by END

-- name: save_effect
-- An effect that the store itself moved.
UPDATE perdure.effect SET state = %(state)s, result = %(result)s, error = %(error)s, permit = %(permit)s, settled_at = %(settled_at)s, settled_by = %(settled_by)s
WHERE run = %(run)s AND generation = %(generation)s AND idx = %(idx)s AND position = %(position)s

-- name: hold_effect
-- One effect. It can't change before this transaction ends.
SELECT e.* FROM perdure.effect e
WHERE e.run = (SELECT seq FROM perdure.run WHERE id = %(run_id)s) AND e.generation = %(generation)s AND e.idx = %(idx)s AND e.position = %(position)s
FOR SHARE OF e

-- name: hold_claim
-- The effect that a business key stands for.
SELECT e.*, r.id AS run_id FROM perdure.effect e JOIN perdure.run r ON r.seq = e.run WHERE e.claim = %(claim)s AND e.state IN ('started', 'done', 'unknown')
FOR SHARE OF e

-- name: list_unsettled_effects
-- Effects that are started or unknown, of every generation.
SELECT e.* FROM perdure.effect e JOIN perdure.run r ON r.seq = e.run WHERE r.id = %(id)s AND e.state IN ('started', 'unknown') ORDER BY e.seq

-- name: list_effects_of
-- Every effect of a run up to a generation.
SELECT * FROM perdure.effect WHERE run = %(run)s ORDER BY seq
