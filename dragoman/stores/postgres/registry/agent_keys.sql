-- name: next_version
UPDATE agent_keys_version SET version = version + 1 RETURNING version;

-- name: version
SELECT version FROM agent_keys_version;

-- name: changed
SELECT id, hash, agent, label, tenant, owner, scopes, parent, parent_ref, parent_mark, generation,
    made_at, expires_at, revoked_at, version
FROM agent_keys WHERE version > $1 ORDER BY version, number;

-- name: of_agent
SELECT id, hash, agent, label, tenant, owner, scopes, parent, parent_ref, parent_mark, generation,
    made_at, expires_at, revoked_at
FROM agent_keys WHERE agent = $1 ORDER BY number;

-- name: agent_exists
-- Locked, so that the agent is not removed before its key is there.
SELECT 1 FROM agents WHERE id = $1 FOR KEY SHARE;

-- name: forget
DELETE FROM agent_keys WHERE least(revoked_at, expires_at) < $1;

-- name: count_valid
SELECT count(*) FROM agent_keys
WHERE agent = $1 AND revoked_at IS NULL AND coalesce(expires_at > $2, true);

-- name: put
INSERT INTO agent_keys (id, hash, agent, label, tenant, owner, scopes, parent, parent_ref,
    parent_mark, generation, made_at, expires_at, revoked_at, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15);

-- name: revoke
UPDATE agent_keys SET revoked_at = $1, version = $2 WHERE revoked_at IS NULL AND id = $3
RETURNING id;

-- name: revoke_all
UPDATE agent_keys SET revoked_at = $1, version = $2 WHERE revoked_at IS NULL AND agent = $3;
