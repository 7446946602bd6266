-- Keys by which agents call the gateway whose store this is, and no other server. Their texts are
-- nowhere: the file has hashes. Each has the credential that it was made by, and ends with it.
CREATE TABLE agent_keys (
    number      INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    hash        BLOB NOT NULL,          -- SHA-256 of the key's text
    agent       TEXT NOT NULL,          -- the id of the agent
    label       TEXT NOT NULL,
    tenant      TEXT,                   -- whom it acts for; NULL: its maker's credential named no tenant
    owner       TEXT NOT NULL CHECK (owner <> ''),
    scopes      TEXT NOT NULL,          -- with spaces in between
    parent      TEXT NOT NULL CHECK (parent <> ''), -- the credential it was made by: key:ID, token:NAME
    parent_ref  TEXT NOT NULL,
    parent_mark BLOB NOT NULL,          -- keyed with the store's secret
    generation  INTEGER NOT NULL,       -- how many keys of agents are above it, itself included
    made_at     INTEGER NOT NULL,       -- milliseconds
    expires_at  INTEGER,                -- milliseconds; NULL: with its parent alone
    revoked_at  INTEGER,                -- milliseconds
    version     INTEGER NOT NULL        -- of its last change
);
CREATE INDEX agent_keys_by_agent ON agent_keys (agent, number);
CREATE INDEX agent_keys_by_version ON agent_keys (version);
CREATE TABLE agent_keys_version (
    version INTEGER NOT NULL
);
INSERT INTO agent_keys_version VALUES (0);
