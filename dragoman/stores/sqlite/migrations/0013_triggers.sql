-- What begins tasks by itself. A run of one is a task whose message is named by the trigger and its
-- due time, so runs need no table and none is made twice.
CREATE TABLE triggers (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    tenant     TEXT NOT NULL,
    owner      TEXT NOT NULL,
    made_at    INTEGER NOT NULL, -- milliseconds, as due_at
    definition BLOB NOT NULL, -- JSON
    due_at     INTEGER, -- NULL: it waits for no time
    version    INTEGER NOT NULL
);
CREATE INDEX triggers_by_owner ON triggers (tenant, owner, number);
CREATE INDEX triggers_due ON triggers (due_at) WHERE due_at IS NOT NULL;
