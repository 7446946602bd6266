-- name: pid
SELECT pg_backend_pid();

-- name: lock
-- Another first half than our locks have.
SELECT pg_try_advisory_lock(1685217640, $1);

-- name: has_lock
SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1685217640
    AND objid = $1::int::oid AND objsubid = 2 AND granted AND pid = pg_backend_pid());

-- name: sees_lock
SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1685217640
    AND objid = $1::int::oid AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- name: notify
SELECT pg_notify($1, '');
