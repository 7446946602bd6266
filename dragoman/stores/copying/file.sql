-- The names in braces come from the tables of `tables.py`.

-- name: tasks
SELECT count(*), coalesce(sum(last_seq), 0), coalesce(max(status_at), 0) FROM tasks;

-- name: transfers
SELECT coalesce(max(number), 0) FROM transfers;

-- name: trust_events
SELECT coalesce(max(number), 0) FROM trust_events;

-- name: agents_version
SELECT version FROM agents_watch;

-- name: agent_keys_version
SELECT version FROM agent_keys_version;

-- name: secrets
SELECT hex(value) FROM facts WHERE name IN ('secret', 'sealed_secret');

-- name: sequences
SELECT name, seq FROM sqlite_sequence;

-- name: last_task
SELECT max(
    coalesce((SELECT max(number) FROM tasks), 0),
    coalesce((SELECT max(task) FROM errands), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'retired_number'), 0)
);

-- name: count
SELECT count(*) FROM {table} WHERE {where};

-- name: count_in_two
-- Rows of one kind may lie in two tables.
SELECT count(*) FROM (SELECT {columns} FROM {table} UNION ALL SELECT {columns} FROM {other})
WHERE {where};

-- name: rows
SELECT {columns} FROM {table} WHERE {where} ORDER BY {key} LIMIT {most};

-- name: rows_in_two
SELECT {columns} FROM (SELECT {columns} FROM {table} UNION ALL SELECT {columns} FROM {other})
WHERE {where} ORDER BY {key} LIMIT {most};

-- name: events
SELECT position >> ?1, position & ?2, n, kind, bodies FROM events
WHERE position > ?3 ORDER BY position LIMIT ?4;

-- name: is_begun
SELECT 1 FROM sqlite_schema WHERE name = 'copying';

-- name: make_place
CREATE TABLE IF NOT EXISTS copying (place BLOB NOT NULL);

-- name: add_place
INSERT INTO copying VALUES (?);

-- name: set_place
UPDATE copying SET place = ?;

-- name: place
SELECT place FROM copying;

-- name: forget_place
DELETE FROM copying;

-- name: drop_place
DROP TABLE copying;

-- name: forget_counts
DELETE FROM counts;

-- name: triggers
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger';

-- name: drop_trigger
DROP TRIGGER {name};

-- name: empty
DELETE FROM {table};

-- name: add_events
INSERT INTO events (position, n, kind, bodies) VALUES (?, ?, ?, ?);

-- name: add_rows
INSERT INTO {table} ({columns}) VALUES ({values});

-- name: count_tasks
INSERT INTO counts (scope, state, n)
SELECT scope, state, count(*) FROM tasks GROUP BY scope, state;

-- name: set_agents_version
UPDATE agents_watch SET version = ?;

-- name: set_agent_keys_version
UPDATE agent_keys_version SET version = ?;

-- name: set_last_task
INSERT OR REPLACE INTO facts VALUES ('retired_number', ?);

-- name: forget_sequence
DELETE FROM sqlite_sequence WHERE name = ?;

-- name: add_sequence
INSERT INTO sqlite_sequence VALUES (?, ?);
