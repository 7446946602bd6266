-- The agents that a gateway knows. `version` rises with every change to any of them, so that another
-- process reads only what it has not seen.
CREATE TABLE agents (
    number       INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    name         TEXT NOT NULL UNIQUE,
    body         BLOB NOT NULL, -- JSON, nothing secret
    status       TEXT NOT NULL,
    last_seen_at INTEGER NOT NULL, -- milliseconds
    beat_at      INTEGER NOT NULL, -- milliseconds, of the last heartbeat; 0: it sends none
    version      INTEGER NOT NULL
);
CREATE INDEX agents_by_version ON agents (version);

-- Who was removed, for processes that still have it in memory.
CREATE TABLE agents_removed (
    id      TEXT PRIMARY KEY,
    at      INTEGER NOT NULL, -- milliseconds
    version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX agents_removed_by_version ON agents_removed (version);

-- One row: the latest version, and who looks after the agents until when.
CREATE TABLE agents_watch (
    version INTEGER NOT NULL,
    worker  INTEGER NOT NULL,
    until   INTEGER NOT NULL -- milliseconds
);
INSERT INTO agents_watch VALUES (0, 0, 0);

-- What the gateway shows an agent when it calls it. `shown` says whose it is and where it may go,
-- in clear; `body` is sealed where the file has a key, and only together with `shown`.
CREATE TABLE agent_credentials (
    number INTEGER PRIMARY KEY,
    agent  TEXT NOT NULL UNIQUE,
    shown  BLOB NOT NULL, -- JSON
    body   BLOB NOT NULL -- JSON
);
