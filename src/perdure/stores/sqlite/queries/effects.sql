-- name: put_effect
-- An effect call in a new state. Who started it, and when, is kept until it is started again.
INSERT INTO effect (
    run, generation, idx, position, state, tool, tool_call_id, unknown, input, input_hash, result, error, try_no, permit, claim, time_limit, worker, epoch,
    started_at, settled_at, settled_by
) VALUES (
    :run, :generation, :idx, :position, :state, :tool, :tool_call_id, :unknown, :input, :input_hash, :result, :error, :try_no, :permit, :claim,
    :time_limit, :worker, :epoch, :started_at, :settled_at, :settled_by
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
UPDATE effect SET state = :state, result = :result, error = :error, permit = :permit, settled_at = :settled_at, settled_by = :settled_by
WHERE run = :run AND generation = :generation AND idx = :idx AND position = :position

-- name: hold_effect
-- One effect. It can't change before this transaction ends.
SELECT e.* FROM effect e
WHERE e.run = (SELECT seq FROM run WHERE id = :run_id) AND e.generation = :generation AND e.idx = :idx AND e.position = :position

-- name: hold_claim
-- The effect that a business key stands for.
SELECT e.*, r.id AS run_id FROM effect e JOIN run r ON r.seq = e.run WHERE e.claim = :claim AND e.state IN ('started', 'done', 'unknown')

-- name: list_unsettled_effects
-- Effects that are started or unknown, of every generation.
SELECT e.* FROM effect e JOIN run r ON r.seq = e.run WHERE r.id = :id AND e.state IN ('started', 'unknown') ORDER BY e.seq

-- name: list_effects_of
-- Every effect of a run up to a generation.
SELECT * FROM effect WHERE run = :run ORDER BY seq
