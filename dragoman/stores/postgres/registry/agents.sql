-- name: version
SELECT version FROM agents_watch;

-- name: versions
SELECT agents_watch.version, agent_keys_version.version FROM agents_watch, agent_keys_version;

-- name: changed
SELECT id, name, body, status, last_seen_at, beat_at, version FROM agents
WHERE version > $1 ORDER BY version;

-- name: removed
SELECT id, version FROM agents_removed WHERE version > $1 ORDER BY version;

-- name: next_versions
-- Locks the row until the end of the transaction; returns the last of so many.
UPDATE agents_watch SET version = version + $1 RETURNING version;

-- name: find
SELECT id, name, body, status, last_seen_at, beat_at, version FROM agents WHERE id = $1;

-- name: version_of
SELECT version FROM agents WHERE id = $1;

-- name: is_taken
SELECT 1 FROM agents WHERE name = $1 AND id <> $2;

-- name: put
-- The health of an agent that is there stays as it is.
INSERT INTO agents (id, name, body, status, last_seen_at, beat_at, version)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, body = excluded.body, version = excluded.version
RETURNING id, name, body, status, last_seen_at, beat_at, version;

-- name: put_health
UPDATE agents SET status = given.status, last_seen_at = given.last_seen_at,
    beat_at = given.beat_at, version = given.version
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS given (id, status, last_seen_at, beat_at, version)
WHERE agents.id = given.id;

-- name: remove
DELETE FROM agents WHERE id = $1;

-- name: forget_removed
DELETE FROM agents_removed WHERE at < $1;

-- name: note_removed
INSERT INTO agents_removed VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, version = excluded.version;

-- name: circuits
SELECT agent, url, caller,
    greatest(0, extract(epoch FROM until - clock_timestamp()) * 1000)::bigint, opened
FROM agent_circuits WHERE version > $1 ORDER BY version;

-- name: put_circuits
INSERT INTO agent_circuits (agent, url, caller, until, opened, version)
SELECT agent, url, caller, clock_timestamp() + open_for * interval '1 ms', opened, $6
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::int[])
    AS given (agent, url, caller, open_for, opened)
ON CONFLICT (agent, url, caller) DO UPDATE
SET until = excluded.until, opened = excluded.opened, version = excluded.version;

-- name: forget_circuits
DELETE FROM agent_circuits WHERE until < clock_timestamp() - interval '1 hour';

-- name: drop_circuits
DELETE FROM agent_circuits WHERE agent = $1;

-- name: credential
SELECT shown, body FROM agent_credentials WHERE agent = $1;

-- name: put_credential
INSERT INTO agent_credentials (agent, shown, body) VALUES ($1, $2, $3)
ON CONFLICT (agent) DO UPDATE SET shown = excluded.shown, body = excluded.body;

-- name: drop_credential
DELETE FROM agent_credentials WHERE agent = $1;

-- name: put_address
INSERT INTO agent_places AS place VALUES ($1, $2, $3, $4)
ON CONFLICT (owner, origin, agent) DO UPDATE SET url = excluded.url WHERE place.url <> excluded.url;

-- name: former
-- Of several the one that was at the very address, and else the one that was registered first.
SELECT agent FROM agent_places WHERE owner = $1 AND origin = $2
    AND agent NOT IN (SELECT id FROM agents)
ORDER BY url <> $3, agent COLLATE "C" LIMIT 1;

-- name: is_referred_to
SELECT EXISTS (SELECT 1 FROM trust_events WHERE agent = $1)
    OR EXISTS (SELECT 1 FROM orders WHERE ended_at = 0 AND agent = $1)
    OR EXISTS (SELECT 1 FROM orders WHERE ended_at > 0 AND NOT is_observed AND agent = $1);

-- name: forget_addresses
DELETE FROM agent_places WHERE agent = $1;
