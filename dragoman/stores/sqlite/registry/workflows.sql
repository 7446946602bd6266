-- name: put
INSERT INTO workflows (id, tenant, owner, made_at, definition)
SELECT ?1, ?2, ?3, ?4, ?5 WHERE ?6 >
    (SELECT count(*) FROM workflows WHERE tenant = ?2 AND owner = ?3) RETURNING number

-- name: one
SELECT id, made_at, definition FROM workflows WHERE id = ? AND tenant = ? AND owner = ?

-- name: page
SELECT id, made_at, definition FROM workflows WHERE tenant = ? AND owner = ?
ORDER BY number DESC LIMIT ? OFFSET ?

-- name: total
SELECT count(*) FROM workflows WHERE tenant = ? AND owner = ?
