-- Rows are clustered by ordered integers: tasks by number, events by position = number << 20 | seq.
-- Random public ids live in one index.

CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE scopes (
    number INTEGER PRIMARY KEY,
    agent  TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner  TEXT NOT NULL,
    UNIQUE (agent, tenant, owner)
);

CREATE TABLE tasks (
    number    INTEGER PRIMARY KEY,
    id        TEXT NOT NULL,
    scope     INTEGER NOT NULL,
    context   TEXT NOT NULL,
    state     INTEGER NOT NULL,
    status_at INTEGER NOT NULL, -- milliseconds
    last_seq  INTEGER NOT NULL,
    fence     INTEGER NOT NULL
);
CREATE UNIQUE INDEX tasks_by_id ON tasks (id, scope);
CREATE INDEX tasks_by_time ON tasks (scope, status_at, number);
CREATE INDEX tasks_by_state ON tasks (scope, state, status_at, number);
CREATE INDEX tasks_by_context ON tasks (scope, context, status_at, number);

-- One row per write: the events that became durable together, one JSON text a line.
CREATE TABLE events (
    position INTEGER PRIMARY KEY, -- of the last of them
    n        INTEGER NOT NULL,
    kind     INTEGER NOT NULL, -- 1: artifact chunks only, 0: anything else
    bodies   BLOB NOT NULL
);

-- The task at its last resting point, its artifacts apart so that lists need not read them.
CREATE TABLE snapshots (
    task      INTEGER PRIMARY KEY,
    seq       INTEGER NOT NULL,
    head      BLOB NOT NULL,
    artifacts BLOB NOT NULL
);

-- What a caller's message became, so that its repetition becomes the same.
CREATE TABLE keys (
    scope   INTEGER NOT NULL,
    key     BLOB NOT NULL,
    task    INTEGER,
    reply   BLOB,
    made_at INTEGER NOT NULL, -- milliseconds
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;

-- How many tasks of a scope are in a state, so that totals cost nothing.
CREATE TABLE counts (
    scope INTEGER NOT NULL,
    state INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (scope, state)
) WITHOUT ROWID;
