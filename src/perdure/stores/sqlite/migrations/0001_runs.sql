-- Every table of the first release. Times are microseconds since 1970 (UTC) by the store's clock.
-- Child tables name their run by its short number (`run.seq`), not by its 36-character id.
-- BLOB columns went through the codec; the other columns stay clear, because the engine asks for them.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Added to the machine's clock, so that tests can move the clock of every process at once.
INSERT INTO meta (name, value) VALUES ('clock_offset', 0);

-- What every commit rewrites. Kept small on purpose: whatever may be long lives in `run_body`.
-- epoch, claim_token, commit_no: the claim; they stay on the row until the next one, so that a repeated commit is told the truth.
-- first_event, ended: what the last commit of this claim was told (0: this claim has not committed), and whether it ended the claim.
-- tail_*: the newest checkpoint of this generation, and how many of its messages others share.
-- due_at: `available_at` while it lies ahead; the claim clears it, so that runs for later are no obstacle on its way.
CREATE TABLE run (
    seq INTEGER PRIMARY KEY,
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
    epoch INTEGER NOT NULL DEFAULT 0,
    claim_token TEXT,
    commit_no INTEGER NOT NULL DEFAULT 0,
    first_event INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_host TEXT,
    lease_expires_at INTEGER,
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
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    due_at INTEGER,
    started_at INTEGER,
    finished_at INTEGER,
    deadline INTEGER
) STRICT;

-- The claim's order: interrupted first, then by priority, begun before not begun, in order of admission.
CREATE INDEX run_claim ON run (agent, (status = 'pending'), (-priority), (executions = 0), seq)
    WHERE status IN ('pending', 'interrupted') AND due_at IS NULL;
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_lease ON run (lease_expires_at) WHERE status = 'running';
CREATE INDEX run_token ON run (claim_token) WHERE claim_token IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline) WHERE deadline IS NOT NULL AND status IN ('pending', 'interrupted', 'waiting');
CREATE INDEX run_finished ON run (finished_at, seq) WHERE finished_at IS NOT NULL;
CREATE INDEX run_key ON run (concurrency_key, seq) WHERE concurrency_key IS NOT NULL AND status IN ('pending', 'interrupted');
CREATE INDEX run_agent ON run (agent, status, seq);
CREATE INDEX run_status ON run (status, seq);
CREATE INDEX run_thread ON run (thread, seq) WHERE thread IS NOT NULL;
CREATE INDEX run_parent ON run (parent_run, seq) WHERE parent_run IS NOT NULL;

-- What is written at the ends of a run's life, however large.
CREATE TABLE run_body (
    run INTEGER PRIMARY KEY,
    trigger BLOB NOT NULL,
    budget TEXT NOT NULL,
    labels TEXT NOT NULL,
    output BLOB,
    error BLOB
) STRICT;

CREATE TABLE label (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (name, value, run)
) STRICT, WITHOUT ROWID;

-- What a trigger's key stands for. It outlives its run: `status` is the final one of a run that was pruned.
CREATE TABLE trigger_key (
    agent TEXT NOT NULL,
    key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    retention INTEGER NOT NULL,
    expires_at INTEGER,
    status TEXT,
    PRIMARY KEY (agent, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX trigger_key_expiry ON trigger_key (expires_at) WHERE expires_at IS NOT NULL;

-- Who holds a concurrency key ('key'), a thread ('thread') or one of an agent's places ('agent', one slot each).
-- Unique rows, so that two claims at once can't both find it free; views over live holders, never counters.
CREATE TABLE hold (
    kind TEXT NOT NULL CHECK (kind IN ('key', 'thread', 'agent')),
    name TEXT NOT NULL,
    slot INTEGER NOT NULL,
    run INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    PRIMARY KEY (kind, name, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX hold_run ON hold (run);

-- The run whose history a thread's next run starts from.
CREATE TABLE thread_head (
    thread TEXT PRIMARY KEY,
    run_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The history of (generation, idx) is the first `length` messages of list `base`.
CREATE TABLE checkpoint (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    base INTEGER NOT NULL,
    length INTEGER NOT NULL,
    format INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    finish_reason TEXT,
    version TEXT,
    tools_hash TEXT,
    PRIMARY KEY (run, generation, idx)
) STRICT, WITHOUT ROWID;

-- A rowid table: messages are mostly longer than what a page of a WITHOUT ROWID table keeps of a row.
CREATE TABLE message (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    base INTEGER NOT NULL,
    position INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (run, generation, base, position)
) STRICT;

CREATE TABLE step (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
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
    started_at INTEGER,
    finished_at INTEGER,
    input BLOB,
    output BLOB,
    text BLOB,
    error BLOB,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    type TEXT NOT NULL,
    at INTEGER NOT NULL,
    data BLOB,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- One effect call. Its key is <run id>:<generation>:<idx>:<position>, so it is not stored again.
CREATE TABLE effect (
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('planned', 'started', 'done', 'failed', 'unknown')),
    tool TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    unknown TEXT NOT NULL,
    input BLOB,
    input_hash TEXT,
    result BLOB,
    error BLOB,
    try_no INTEGER NOT NULL,
    permit INTEGER NOT NULL,
    claim TEXT,
    time_limit REAL,
    worker TEXT,
    epoch INTEGER,
    started_at INTEGER,
    settled_at INTEGER,
    settled_by TEXT,
    UNIQUE (run, generation, idx, position)
) STRICT;
CREATE INDEX effect_claim ON effect (claim, seq) WHERE claim IS NOT NULL;
CREATE INDEX effect_open ON effect (state, seq) WHERE state IN ('planned', 'started', 'unknown');

-- A question. commit_no: the commit that asked it (NULL: the store itself did); answered: its answer was there already; resolved_at: NULL while it is open.
-- notice_at: when somebody should be told next; NULL: nobody is.
CREATE TABLE wait (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    commit_no INTEGER,
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
    input BLOB,
    input_hash TEXT,
    expires_at INTEGER,
    on_expiry TEXT NOT NULL,
    warn_at INTEGER,
    data BLOB,
    created_at INTEGER NOT NULL,
    resolved_at INTEGER,
    resolution BLOB,
    votes BLOB,
    notified_at INTEGER,
    warned_at INTEGER,
    notice_at INTEGER,
    notify_after INTEGER,
    notify_tries INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX wait_run ON wait (run, generation);
CREATE INDEX wait_open ON wait (seq) WHERE resolved_at IS NULL;
CREATE UNIQUE INDEX wait_question ON wait (run, generation, question) WHERE resolved_at IS NULL;
CREATE INDEX wait_notice ON wait (notice_at, seq) WHERE resolved_at IS NULL AND notice_at IS NOT NULL;
CREATE INDEX wait_expiry ON wait (expires_at) WHERE resolved_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX wait_child ON wait (child) WHERE resolved_at IS NULL AND child IS NOT NULL;
CREATE INDEX wait_effect ON wait (effect_key) WHERE resolved_at IS NULL AND effect_key IS NOT NULL;
CREATE INDEX wait_room ON wait (name) WHERE resolved_at IS NULL AND kind = 'budget' AND name IS NOT NULL;

-- Room that was taken for one model call under a shared budget. In flight while the claim of that epoch is held, estimated spend ever after; the commit that brings
-- the real figure deletes it.
CREATE TABLE reservation (
    run INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    step INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost TEXT NOT NULL,
    PRIMARY KEY (run, epoch, step)
) STRICT, WITHOUT ROWID;

-- Single-use secrets of approval links, hashed; void once their row is resolved.
CREATE TABLE wait_token (
    wait INTEGER NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (wait, hash)
) STRICT, WITHOUT ROWID;

-- The inbox. `taken` is the generation that used the signal up (0: none yet); a later generation may take it again.
CREATE TABLE signal (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    payload BLOB,
    at INTEGER NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

-- Bytes by content, stored once.
CREATE TABLE artifact (
    id TEXT PRIMARY KEY,
    media_type TEXT NOT NULL,
    size INTEGER NOT NULL,
    filename TEXT,
    created_at INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
