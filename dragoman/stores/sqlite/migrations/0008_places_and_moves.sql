-- Where agents are and were, so that one that is removed and registered anew is known again: what
-- was observed of it goes by its id.
CREATE TABLE agent_places (
    owner  TEXT NOT NULL,
    origin TEXT NOT NULL,
    agent  TEXT NOT NULL,
    url    TEXT NOT NULL, -- at this origin, the last
    PRIMARY KEY (owner, origin, agent)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_places_by_agent ON agent_places (agent);

-- How often a task was given to another agent, or to the same one elsewhere.
ALTER TABLE errands ADD COLUMN moves INTEGER NOT NULL DEFAULT 0;
