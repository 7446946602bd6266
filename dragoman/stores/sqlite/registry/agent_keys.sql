-- name: next_version
UPDATE agent_keys_version SET version = version + 1 RETURNING version

-- name: version
SELECT version FROM agent_keys_version

-- name: changed
SELECT id, hash, agent, label, tenant, owner, scopes, parent, parent_ref, parent_mark, generation,
    made_at, expires_at, revoked_at
FROM agent_keys WHERE version > ? ORDER BY version

-- name: all
SELECT id, hash, agent, label, tenant, owner, scopes, parent, parent_ref, parent_mark, generation,
    made_at, expires_at, revoked_at
FROM agent_keys ORDER BY number

-- name: of_agent
SELECT id, hash, agent, label, tenant, owner, scopes, parent, parent_ref, parent_mark, generation,
    made_at, expires_at, revoked_at
FROM agent_keys WHERE agent = ? ORDER BY number

-- name: agent_exists
SELECT 1 FROM agents WHERE id = ?

-- name: forget
DELETE FROM agent_keys
WHERE min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) < ?

-- name: count_valid
SELECT count(*) FROM agent_keys
WHERE agent = ? AND revoked_at IS NULL AND coalesce(expires_at > ?, 1)

-- name: put
INSERT INTO agent_keys (id, hash, agent, label, tenant, owner, scopes, parent, parent_ref,
    parent_mark, generation, made_at, expires_at, revoked_at, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: revoke
UPDATE agent_keys SET revoked_at = ?, version = ?
WHERE revoked_at IS NULL AND id = ? RETURNING id

-- name: revoke_all
UPDATE agent_keys SET revoked_at = ?, version = ?
WHERE revoked_at IS NULL AND agent = ? RETURNING id
