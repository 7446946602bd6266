-- The names in braces come from the tables of `tables.py`, and from the database.

-- name: living
SELECT count(*)::int FROM workers WHERE gone_at IS NULL AND has_session(number);

-- name: tasks
SELECT count(*), coalesce(sum(last_seq), 0)::bigint, coalesce(max(status_at), 0) FROM tasks;

-- name: transfers
SELECT coalesce(max(number), 0) FROM transfers;

-- name: trust_events
SELECT coalesce(max(number), 0) FROM trust_events;

-- name: agents_version
SELECT version FROM agents_watch;

-- name: agent_keys_version
SELECT version FROM agent_keys_version;

-- name: secrets
SELECT encode(value, 'hex') FROM facts WHERE name IN ('secret', 'sealed_secret');

-- name: last_block
SELECT last_value, is_called FROM blocks;

-- name: sequence
SELECT pg_get_serial_sequence($1, 'number');

-- name: last
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence};

-- name: count
SELECT count(*)::bigint FROM {table} WHERE {where};

-- name: rows
SELECT {columns} FROM {table} WHERE {where} ORDER BY {key} LIMIT {most};

-- name: is_begun
SELECT to_regclass('copying') IS NOT NULL;

-- name: make_place
CREATE TABLE IF NOT EXISTS copying (place bytea NOT NULL);

-- name: add_place
INSERT INTO copying VALUES ($1);

-- name: set_place
UPDATE copying SET place = $1;

-- name: place
SELECT place FROM copying;

-- name: forget_place
DELETE FROM copying;

-- name: drop_place
DROP TABLE copying;

-- name: forget_counts
DELETE FROM counts;

-- name: has_rows
SELECT EXISTS (SELECT 1 FROM {table});

-- name: empty
TRUNCATE {tables}, counts RESTART IDENTITY;

-- name: make_partition
SELECT make_place($1);

-- name: count_tasks
INSERT INTO counts (scope, state, shard, n)
SELECT scope, state, 0, count(*) FROM tasks GROUP BY scope, state;

-- name: set_agents_version
UPDATE agents_watch SET version = $1;

-- name: set_agent_keys_version
UPDATE agent_keys_version SET version = $1;

-- name: forget_unindexed
DELETE FROM unindexed_blocks;

-- name: set_block
SELECT setval('blocks', $1, false);

-- name: set_last
SELECT setval(
    pg_get_serial_sequence($1, 'number'),
    greatest($2, (SELECT coalesce(max(number), 0) FROM {table})) + 1,
    false
);
