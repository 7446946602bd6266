-- name: notify
-- The ring's own commit waits for no disk and no standby: what it tells of is durable already.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('dragoman', $1);

-- name: make_name
INSERT INTO facts VALUES ('cluster', $1) ON CONFLICT DO NOTHING;

-- name: name
SELECT value FROM facts WHERE name = 'cluster';
