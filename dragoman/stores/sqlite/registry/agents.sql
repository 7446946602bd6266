-- name: changed
SELECT id, name, body, status, last_seen_at, beat_at, version FROM agents
WHERE version > ? ORDER BY version

-- name: removed
SELECT id, version FROM agents_removed WHERE version > ?

-- name: version
SELECT version FROM agents_watch

-- name: next_version
UPDATE agents_watch SET version = version + 1 RETURNING version

-- name: find
SELECT id, name, body, status, last_seen_at, beat_at, version FROM agents WHERE id = ?

-- name: version_of
SELECT version FROM agents WHERE id = ?

-- name: is_taken
SELECT 1 FROM agents WHERE name = ? AND id <> ?

-- name: put
-- The health of an agent that is there stays as it is.
INSERT INTO agents (id, name, body, status, last_seen_at, beat_at, version)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, body = excluded.body, version = excluded.version

-- name: put_health
UPDATE agents SET status = ?, last_seen_at = ?, beat_at = ?, version = ? WHERE id = ?

-- name: remove
DELETE FROM agents WHERE id = ?

-- name: forget_removed
DELETE FROM agents_removed WHERE at < ?

-- name: note_removed
INSERT INTO agents_removed VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, version = excluded.version

-- name: credential
SELECT shown, body FROM agent_credentials WHERE agent = ?

-- name: put_credential
INSERT INTO agent_credentials (agent, shown, body) VALUES (?, ?, ?)
ON CONFLICT (agent) DO UPDATE SET shown = excluded.shown, body = excluded.body

-- name: drop_credential
DELETE FROM agent_credentials WHERE agent = ?

-- name: put_address
INSERT INTO agent_places VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET url = excluded.url WHERE url <> excluded.url

-- name: former
-- Of several the one that was at the very address, and else the one that was registered first.
SELECT agent FROM agent_places WHERE owner = ? AND origin = ?
    AND agent NOT IN (SELECT id FROM agents)
ORDER BY url <> ?, agent LIMIT 1

-- name: is_referred_to
SELECT EXISTS (SELECT 1 FROM trust_events WHERE agent = :agent)
    OR EXISTS (SELECT 1 FROM errands WHERE ended_at = 0 AND agent = :agent)
    OR EXISTS (SELECT 1 FROM errands WHERE ended_at > 0 AND is_observed = 0 AND agent = :agent)

-- name: forget_addresses
DELETE FROM agent_places WHERE agent = ?
