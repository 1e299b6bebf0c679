-- Every table of the first release. Times are microseconds since 1970 (UTC) by the store's clock.
-- Child tables name their run by its short number (`run.seq`), not by its 36-character id.
-- BYTEA columns went through the codec; the other columns stay clear, because the engine asks for them.

CREATE TABLE perdure.meta (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);

-- clock_offset: added to the database's clock, so that tests can move the clock of every process at once. schema: its version.
INSERT INTO perdure.meta (name, value) VALUES ('clock_offset', 0), ('schema', 0);

-- What every commit rewrites. Kept small on purpose: whatever may be long lives in `run_body`.
-- epoch, claim_token, commit_no: the claim; they stay on the row until the next one, so that a repeated commit is told the truth.
-- first_event, ended: what the last commit of this claim was told (0: this claim has not committed), and whether it ended the claim.
-- tail_*: the newest checkpoint of this generation, and how many of its messages others share.
-- Pages keep room for the next version of a row, so that a commit touches no index.
-- due_at: `available_at` while it lies ahead; the claim clears it, so that runs for later are no obstacle on its way.
CREATE TABLE perdure.run (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'waiting', 'interrupted', 'completed', 'failed', 'cancelled')),
    priority INTEGER NOT NULL,
    concurrency_key TEXT,
    thread TEXT,
    trigger_key TEXT,
    parent_run TEXT,
    parent_wait TEXT,
    forked INTEGER NOT NULL,
    head TEXT,
    head_generation INTEGER NOT NULL DEFAULT 0,
    format INTEGER NOT NULL,
    version TEXT,
    epoch BIGINT NOT NULL DEFAULT 0,
    claim_token TEXT,
    commit_no BIGINT NOT NULL DEFAULT 0,
    first_event INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_host TEXT,
    lease_expires_at BIGINT,
    activity TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 1,
    executions INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    settlement INTEGER NOT NULL DEFAULT 0,
    next_event INTEGER NOT NULL DEFAULT 1,
    next_step INTEGER NOT NULL DEFAULT 1,
    tail_base INTEGER NOT NULL DEFAULT -1,
    tail_idx INTEGER NOT NULL DEFAULT -1,
    tail_length INTEGER NOT NULL DEFAULT 0,
    tail_shared INTEGER NOT NULL DEFAULT 0,
    usage TEXT NOT NULL,
    finish_reason TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    available_at BIGINT NOT NULL,
    due_at BIGINT,
    started_at BIGINT,
    finished_at BIGINT,
    deadline BIGINT
) WITH (fillfactor = 70);

-- The claim's order: interrupted first, then by priority, begun before not begun, in order of admission.
CREATE INDEX run_claim ON perdure.run (agent, (status = 'pending'), (-priority), (executions = 0), seq)
    WHERE status IN ('pending', 'interrupted') AND due_at IS NULL;
CREATE INDEX run_due ON perdure.run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_lease ON perdure.run (lease_expires_at) WHERE status = 'running';
CREATE INDEX run_token ON perdure.run (claim_token) WHERE claim_token IS NOT NULL;
CREATE INDEX run_deadline ON perdure.run (deadline) WHERE deadline IS NOT NULL AND status IN ('pending', 'interrupted', 'waiting');
CREATE INDEX run_finished ON perdure.run (finished_at, seq) WHERE finished_at IS NOT NULL;
CREATE INDEX run_key ON perdure.run (concurrency_key, seq) WHERE concurrency_key IS NOT NULL AND status IN ('pending', 'interrupted');
-- Newest first as an expression of its own: else the planner would walk the primary key backwards and hope for rows of that status.
CREATE INDEX run_agent ON perdure.run (agent, status, (-seq));
CREATE INDEX run_status ON perdure.run (status, (-seq));
CREATE INDEX run_thread ON perdure.run (thread, seq) WHERE thread IS NOT NULL;
CREATE INDEX run_parent ON perdure.run (parent_run, seq) WHERE parent_run IS NOT NULL;

-- What is written at the ends of a run's life, however large.
CREATE TABLE perdure.run_body (
    run BIGINT PRIMARY KEY,
    trigger BYTEA NOT NULL,
    budget TEXT NOT NULL,
    labels TEXT NOT NULL,
    output BYTEA,
    error BYTEA
);

CREATE TABLE perdure.label (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run BIGINT NOT NULL,
    PRIMARY KEY (name, value, run)
);

-- What a trigger's key stands for. It outlives its run: `status` is the final one of a run that was pruned.
CREATE TABLE perdure.trigger_key (
    agent TEXT NOT NULL,
    key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    retention BIGINT NOT NULL,
    expires_at BIGINT,
    status TEXT,
    PRIMARY KEY (agent, key)
);
CREATE INDEX trigger_key_expiry ON perdure.trigger_key (expires_at) WHERE expires_at IS NOT NULL;

-- Who holds a concurrency key ('key'), a thread ('thread') or one of an agent's places ('agent', one slot each).
-- Unique rows, so that two claims at once can't both find it free; views over live holders, never counters.
CREATE TABLE perdure.hold (
    kind TEXT NOT NULL CHECK (kind IN ('key', 'thread', 'agent')),
    name TEXT NOT NULL,
    slot BIGINT NOT NULL,
    run BIGINT NOT NULL,
    taken INTEGER NOT NULL,
    PRIMARY KEY (kind, name, slot)
);
CREATE INDEX hold_run ON perdure.hold (run);

-- The run whose history a thread's next run starts from.
CREATE TABLE perdure.thread_head (
    thread TEXT PRIMARY KEY,
    run_id TEXT NOT NULL
);

-- The history of (generation, idx) is the first `length` messages of list `base`.
CREATE TABLE perdure.checkpoint (
    run BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    base INTEGER NOT NULL,
    length INTEGER NOT NULL,
    format INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    finish_reason TEXT,
    version TEXT,
    tools_hash TEXT,
    PRIMARY KEY (run, generation, idx)
);

CREATE TABLE perdure.message (
    run BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    base INTEGER NOT NULL,
    position INTEGER NOT NULL,
    body BYTEA NOT NULL,
    UNIQUE (run, generation, base, position)
);

CREATE TABLE perdure.step (
    run BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    tool_call_id TEXT,
    position INTEGER,
    base INTEGER,
    message INTEGER,
    finish_reason TEXT,
    usage TEXT,
    started_at BIGINT,
    finished_at BIGINT,
    input BYTEA,
    output BYTEA,
    text BYTEA,
    error BYTEA,
    PRIMARY KEY (run, seq)
);

CREATE TABLE perdure.event (
    run BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    type TEXT NOT NULL,
    at BIGINT NOT NULL,
    data BYTEA,
    PRIMARY KEY (run, seq)
);

-- One effect call. Its key is <run id>:<generation>:<idx>:<position>, so it is not stored again.
CREATE TABLE perdure.effect (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('planned', 'started', 'done', 'failed', 'unknown')),
    tool TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    unknown TEXT NOT NULL,
    input BYTEA,
    input_hash TEXT,
    result BYTEA,
    error BYTEA,
    try_no INTEGER NOT NULL,
    permit INTEGER NOT NULL,
    claim TEXT,
    time_limit DOUBLE PRECISION,
    worker TEXT,
    epoch BIGINT,
    started_at BIGINT,
    settled_at BIGINT,
    settled_by TEXT,
    UNIQUE (run, generation, idx, position)
);
CREATE INDEX effect_claim ON perdure.effect (claim, seq) WHERE claim IS NOT NULL;
-- A business key that is started, unknown or done stands for one effect: two starts at once can't both find it free.
CREATE UNIQUE INDEX effect_claim_once ON perdure.effect (claim) WHERE claim IS NOT NULL AND state IN ('started', 'done', 'unknown');
CREATE INDEX effect_open ON perdure.effect (state, seq) WHERE state IN ('planned', 'started', 'unknown');

-- A question. commit_no: the commit that asked it (NULL: the store itself did); answered: its answer was there already; resolved_at: NULL while it is open.
-- notice_at: when somebody should be told next; NULL: nobody is.
CREATE TABLE perdure.wait (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    commit_no BIGINT,
    answered INTEGER NOT NULL DEFAULT 0,
    kind TEXT NOT NULL,
    question TEXT NOT NULL,
    idx INTEGER NOT NULL,
    tool TEXT,
    tool_call_id TEXT,
    position INTEGER,
    effect_key TEXT,
    name TEXT,
    child TEXT,
    input BYTEA,
    input_hash TEXT,
    expires_at BIGINT,
    on_expiry TEXT NOT NULL,
    warn_at BIGINT,
    data BYTEA,
    created_at BIGINT NOT NULL,
    resolved_at BIGINT,
    resolution BYTEA,
    votes BYTEA,
    notified_at BIGINT,
    warned_at BIGINT,
    notice_at BIGINT,
    notify_after BIGINT,
    notify_tries INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX wait_run ON perdure.wait (run, generation);
CREATE INDEX wait_open ON perdure.wait (seq) WHERE resolved_at IS NULL;
CREATE UNIQUE INDEX wait_question ON perdure.wait (run, generation, question) WHERE resolved_at IS NULL;
CREATE INDEX wait_notice ON perdure.wait (notice_at, seq) WHERE resolved_at IS NULL AND notice_at IS NOT NULL;
CREATE INDEX wait_expiry ON perdure.wait (expires_at) WHERE resolved_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX wait_child ON perdure.wait (child) WHERE resolved_at IS NULL AND child IS NOT NULL;
CREATE INDEX wait_effect ON perdure.wait (effect_key) WHERE resolved_at IS NULL AND effect_key IS NOT NULL;
CREATE INDEX wait_room ON perdure.wait (name) WHERE resolved_at IS NULL AND kind = 'budget' AND name IS NOT NULL;

-- Room that was taken for one model call under a shared budget. In flight while the claim of that epoch is held, estimated spend ever after; the commit that brings
-- the real figure deletes it.
CREATE TABLE perdure.reservation (
    run BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    step INTEGER NOT NULL,
    tokens BIGINT NOT NULL,
    cost TEXT NOT NULL,
    PRIMARY KEY (run, epoch, step)
);

-- Single-use secrets of approval links, hashed; void once their row is resolved.
CREATE TABLE perdure.wait_token (
    wait BIGINT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (wait, hash)
);

-- The inbox. `taken` is the generation that used the signal up (0: none yet); a later generation may take it again.
CREATE TABLE perdure.signal (
    run BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    payload BYTEA,
    at BIGINT NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, id)
);

-- Bytes by content, stored once.
CREATE TABLE perdure.artifact (
    id TEXT PRIMARY KEY,
    media_type TEXT NOT NULL,
    size BIGINT NOT NULL,
    filename TEXT,
    created_at BIGINT NOT NULL,
    body BYTEA NOT NULL
);
