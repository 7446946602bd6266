-- New versions of agents that are tried beside the old ones. What is counted and what is still to be
-- compared is in the definition, so that each task counts once. An agent has one rollout at a time.
CREATE TABLE rollouts (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    tenant     TEXT NOT NULL,
    owner      TEXT NOT NULL,
    agent      TEXT NOT NULL,
    made_at    INTEGER NOT NULL, -- milliseconds
    definition BLOB NOT NULL, -- JSON
    is_running INTEGER NOT NULL,
    version    INTEGER NOT NULL
);
CREATE INDEX rollouts_by_owner ON rollouts (tenant, owner, number);
CREATE UNIQUE INDEX rollouts_running ON rollouts (agent) WHERE is_running;
