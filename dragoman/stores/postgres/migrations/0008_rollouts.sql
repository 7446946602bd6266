-- New versions of agents that are tried beside the old ones. What is counted and what is still to be
-- compared is in the definition, so that each task counts once. An agent has one rollout at a time.
CREATE TABLE rollouts (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         text NOT NULL UNIQUE,
    tenant     text NOT NULL,
    owner      text NOT NULL,
    agent      text NOT NULL,
    made_at    bigint NOT NULL,
    definition bytea NOT NULL, -- JSON
    is_running boolean NOT NULL,
    version    bigint NOT NULL
);
CREATE INDEX rollouts_by_owner ON rollouts (tenant, owner, number);
CREATE UNIQUE INDEX rollouts_running ON rollouts (agent) WHERE is_running;
