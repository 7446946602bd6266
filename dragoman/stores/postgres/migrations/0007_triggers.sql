-- What begins tasks by itself. A run of one is a task whose message is named by the trigger and its
-- due time, so runs need no table and none is made twice.
CREATE TABLE triggers (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         text NOT NULL UNIQUE,
    tenant     text NOT NULL,
    owner      text NOT NULL,
    made_at    bigint NOT NULL,
    definition bytea NOT NULL, -- JSON
    due_at     bigint, -- NULL: it waits for no time
    version    bigint NOT NULL
);
CREATE INDEX triggers_by_owner ON triggers (tenant, owner, number);
CREATE INDEX triggers_due ON triggers (due_at) WHERE due_at IS NOT NULL;
