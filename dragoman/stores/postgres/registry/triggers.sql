-- name: lock_owner
SELECT pg_advisory_xact_lock(hashtextextended('dragoman triggers ' || $1, 0));

-- name: put
INSERT INTO triggers (id, tenant, owner, made_at, definition, due_at, version)
SELECT $1, $2, $3, $4, $5, $6, $7 WHERE $8 >
    (SELECT count(*) FROM triggers WHERE tenant = $2 AND owner = $3) RETURNING number;

-- name: one
SELECT id, tenant, owner, made_at, definition, due_at, version FROM triggers WHERE id = $1;

-- name: page
SELECT id, tenant, owner, made_at, definition, due_at, version FROM triggers
WHERE tenant = $1 AND owner = $2 AND ($3 = '' OR id < $3) ORDER BY id DESC LIMIT $4;

-- name: total
SELECT count(*) FROM triggers WHERE tenant = $1 AND owner = $2;

-- name: page_of_all
SELECT id, tenant, owner, made_at, definition, due_at, version FROM triggers
WHERE $1 = '' OR id < $1 ORDER BY id DESC LIMIT $2;

-- name: total_of_all
SELECT count(*) FROM triggers;

-- name: change
UPDATE triggers SET definition = $1, due_at = $2, version = version + 1
WHERE id = $3 AND version = $4 RETURNING number;

-- name: remove
DELETE FROM triggers WHERE id = $1 RETURNING number;

-- name: due
SELECT id, tenant, owner, made_at, definition, due_at, version FROM triggers
WHERE due_at <= $1 ORDER BY due_at LIMIT $2;
