-- name: lock
-- The second half is that of migrations; workers have positive numbers.
SELECT pg_advisory_xact_lock(1685217639, -2);

-- name: make_versions
CREATE TABLE IF NOT EXISTS dragoman_schema (
    version int NOT NULL, -- the last migration that was run
    oldest  int NOT NULL -- the last migration that a program has to know to use the database
);

-- name: versions
SELECT version, oldest FROM dragoman_schema;

-- name: forget_versions
DELETE FROM dragoman_schema;

-- name: add_versions
INSERT INTO dragoman_schema VALUES ($1, $2);

-- name: living
SELECT count(*) FROM workers LEFT JOIN beats ON worker = number
WHERE gone_at IS NULL
    AND (has_session(number) OR coalesce(at, joined_at) + lease > clock_timestamp());

-- name: dismiss_workers
UPDATE workers SET gone_at = clock_timestamp() WHERE gone_at IS NULL;
