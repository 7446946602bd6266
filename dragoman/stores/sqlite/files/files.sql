-- name: generation
SELECT value FROM facts WHERE name = 'generation';

-- name: set_generation
INSERT INTO facts (name, value) VALUES ('generation', ?)
ON CONFLICT DO UPDATE SET value = excluded.value;

-- name: tables
SELECT count(*) FROM sqlite_schema;

-- name: unfinished
SELECT count(*) FROM tasks WHERE state IN (1, 2);

-- name: release_workers
DELETE FROM workers;

-- name: release_tasks
UPDATE tasks SET holder = 0 WHERE holder <> 0 AND state NOT IN (3, 4, 5, 7);

-- name: release_pushes
UPDATE pushes SET holder = 0 WHERE holder <> 0;
