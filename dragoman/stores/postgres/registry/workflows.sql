-- name: lock_owner
SELECT pg_advisory_xact_lock(hashtextextended('dragoman workflows ' || $1, 0));

-- name: put
INSERT INTO workflows (id, tenant, owner, made_at, definition)
SELECT $1, $2, $3, $4, $5 WHERE $6 >
    (SELECT count(*) FROM workflows WHERE tenant = $2 AND owner = $3) RETURNING number;

-- name: one
SELECT id, made_at, definition FROM workflows WHERE id = $1 AND tenant = $2 AND owner = $3;

-- name: page
SELECT id, made_at, definition FROM workflows
WHERE tenant = $1 AND owner = $2 AND ($3 = '' OR id < $3) ORDER BY id DESC LIMIT $4;

-- name: total
SELECT count(*) FROM workflows WHERE tenant = $1 AND owner = $2;
