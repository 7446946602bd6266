-- Graphs of steps over registered agents. A run of one is a task whose context is the workflow's
-- id, so runs need no table: how they stand is read from their logs.
CREATE TABLE workflows (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    tenant     TEXT NOT NULL,
    owner      TEXT NOT NULL,
    made_at    INTEGER NOT NULL, -- milliseconds
    definition BLOB NOT NULL -- JSON
);
CREATE INDEX workflows_by_owner ON workflows (tenant, owner, number);
