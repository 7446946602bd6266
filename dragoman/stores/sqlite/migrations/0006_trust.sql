-- What was observed of agents, in order: each row's hash covers its body and the hash before it.
-- Whatever is said of an agent's standing can be computed from these rows alone.
CREATE TABLE trust_events (
    number INTEGER PRIMARY KEY,
    agent  TEXT NOT NULL,
    type   TEXT NOT NULL,
    task   INTEGER NOT NULL, -- 0: of no task
    at     INTEGER NOT NULL, -- milliseconds
    body   BLOB NOT NULL, -- JSON
    hash   BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX trust_events_once ON trust_events (task, type) WHERE task > 0;
CREATE INDEX trust_events_by_agent ON trust_events (agent, number);
CREATE INDEX trust_violations ON trust_events (agent, at) WHERE type = 'violation';

-- The same, summed up by whom it comes from and by day: no principal counts for more than so much
-- a day, so that is as far as sums may go.
CREATE TABLE trust_days (
    agent       TEXT NOT NULL,
    requester   TEXT NOT NULL,
    is_own      INTEGER NOT NULL, -- 1: the agent is the requester's, who is not the local user
    day         INTEGER NOT NULL, -- since the epoch
    completed   INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    response_ms INTEGER NOT NULL DEFAULT 0, -- of the completed ones together
    ratings     INTEGER NOT NULL DEFAULT 0,
    rating_sum  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (agent, requester, is_own, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX trust_days_by_requester ON trust_days (requester, agent);

-- Who ever paid another for a task. What others say of agents does not count.
CREATE TABLE payers (
    requester TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- What requesters said of completed tasks: one word per task.
CREATE TABLE ratings (
    task      INTEGER PRIMARY KEY,
    agent     TEXT NOT NULL,
    requester TEXT NOT NULL,
    rating    INTEGER NOT NULL, -- 1 to 5
    comment   TEXT NOT NULL,
    at        INTEGER NOT NULL
) STRICT;

-- Tasks whose requester says that they were not done.
CREATE TABLE disputes (
    task        INTEGER PRIMARY KEY,
    agent       TEXT NOT NULL,
    requester   TEXT NOT NULL,
    reason      TEXT NOT NULL,
    opened_at   INTEGER NOT NULL,
    outcome     TEXT NOT NULL DEFAULT '', -- upheld or rejected, once an operator has decided
    note        TEXT NOT NULL DEFAULT '',
    resolved_at INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX disputes_open ON disputes (task) WHERE outcome = '';

-- Whether the errand is among the events.
ALTER TABLE errands ADD COLUMN is_observed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX errands_unobserved ON errands (task) WHERE ended_at > 0 AND is_observed = 0;
