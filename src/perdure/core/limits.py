"""Every bound in one place, each with the reason for its number."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

MAX_STEPS_DEFAULT: Final = 50
"""Model calls of one generation when the agent names no budget: enough for real work, small enough to stop a loop."""

LEASE_DEFAULT: Final = timedelta(seconds=30)
"""How long a claim lasts without renewal. A dead worker's runs move after at most this."""

LEASE_LEAST: Final = timedelta(milliseconds=1)
"""A shorter lease would be over before its claim is answered."""

LEASE_MARGIN: Final = 0.1
"""Share of the lease that a worker gives up of its own accord, so that it stops before anybody may take over."""

RENEWALS_PER_LEASE: Final = 3
"""Renewals are sent this often per lease: two may get lost."""

DEATHS_MAX: Final = 5
"""Leases in a row that may run out before a run is failed as poisoned."""

EFFECT_GRACE: Final = timedelta(seconds=30)
"""How long an effect in flight is shielded from cancel, drain and time-out."""

DRAIN_GRACE: Final = timedelta(seconds=20)
"""How long a drain lets running steps finish. Below the 30 s that most platforms wait after SIGTERM."""

APPROVAL_WITHIN: Final = timedelta(days=7)
"""The deadline of an approval that names none."""

KEY_RETENTION: Final = timedelta(days=30)
"""How long an idempotency key answers after its run has settled."""

INLINE_MAX: Final = 256 * 1024
"""Bytes of one tool result that stay in the history; a larger one becomes an artifact with a preview."""

PREVIEW_CHARS: Final = 2_000
"""Characters of a large value that the history keeps as its preview."""

LEAVE_PATIENCE: Final = timedelta(seconds=30)
"""How long an agent's deps and toolsets may take to close once it is known what the run came to. A run is not held by what hangs on the way out."""

DEPTH_MAX: Final = 100
"""Levels of a stored value. What reads it back and shows it to a model is recursive, and gives up at about twice that."""

INTEGER_BITS_MAX: Final = 13_000
"""Bits of a stored integer. Python itself refuses to read one of more than 4,300 digits."""

PAYLOAD_MAX: Final = 4 * 1024 * 1024
"""Bytes of a trigger's payload as JSON. Larger inputs belong in attachments."""

ARTIFACT_MAX: Final = 64 * 1024 * 1024
"""Bytes of one artifact that the database keeps."""

KEY_MAX: Final = 512
"""Characters of an idempotency key, concurrency key, thread or label value."""

LABELS_MAX: Final = 100
"""Labels of one run. They are for people and lists; data belongs in the payload."""

SPAN_MAX: Final = timedelta(days=36_525)
"""The longest time that may be asked for, a century: every calendar and every clock that a store keeps can add it to now."""

WHOLE_MAX: Final = 2**53 - 1
"""The largest number of a limit: what every JSON reader holds exactly."""

NAME_MAX: Final = 120
"""Characters of an agent's name."""

LENGTH_CUTS_MAX: Final = 3
"""Responses in a row that were cut at the token limit before the run fails."""

EMPTY_RESPONSES_MAX: Final = 2
"""Times an empty response is asked again before the run fails."""

REPEATED_CALLS_MAX: Final = 5
"""Identical rounds of tool calls in a row (A-A-A or A-B-A-B) before the loop guard trips."""

MODEL_TRIES_MAX: Final = 4
"""Tries of one model call: one and three retries."""

RETRY_AFTER_INLINE: Final = timedelta(seconds=20)
"""A Retry-After up to this is slept inside the step; a longer one parks the run and frees the worker."""

RETRY_AFTER_PARK: Final = timedelta(hours=1)
"""A Retry-After up to this parks the run; a longer one is a quota, and opens a wait."""

SIGNALS_MAX: Final = 1_000
"""Signals that one run's inbox holds before further ones are refused."""

GROUP_COMMITS_MAX: Final = 64
"""Commits that share one fsync on SQLite."""

GROUP_SECONDS_MAX: Final = 0.02
"""How long one group may hold SQLite's write lock."""

SWEEP_BATCH: Final = 100
"""Rows that one pass of the tick may move, so that no pass holds a lock for long."""

CLAIM_BATCH: Final = 16
"""Runs that one claim may take."""

POLL: Final = timedelta(seconds=0.5)
"""How often an idle worker looks for work when nothing woke it."""

ROOM_LOOK: Final = timedelta(seconds=15)
"""How long a run waits for room under a shared budget before it looks by itself: who died with a reservation wakes nobody."""

TICK: Final = timedelta(seconds=1)
"""How often a worker looks for expired leases, waits and timers."""

LOG_FLUSH: Final = timedelta(milliseconds=200)
"""How long a log line may wait for a commit to ride on."""

RECENT_STEPS: Final = 16
"""Llm steps that an execution reads to know how often in a row something happened: above every such limit."""

STORE_AWAY: Final = timedelta(seconds=2)
"""How long a run rests that could not go on because the store could not be reached: it costs nobody anything, and no attempt of the run."""
