-- name: forget
DELETE FROM rollouts WHERE number IN (SELECT number FROM rollouts
    WHERE tenant = $1 AND owner = $2 AND NOT is_running ORDER BY number DESC OFFSET $3);

-- name: put
INSERT INTO rollouts (id, tenant, owner, agent, made_at, definition, is_running, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING number;

-- name: one
SELECT id, tenant, owner, agent, made_at, definition, is_running, version FROM rollouts
WHERE id = $1;

-- name: page
SELECT id, tenant, owner, agent, made_at, definition, is_running, version FROM rollouts
WHERE tenant = $1 AND owner = $2 AND $3 IN ('', agent) AND ($4 = '' OR id < $4)
ORDER BY id DESC LIMIT $5;

-- name: total
SELECT count(*) FROM rollouts WHERE tenant = $1 AND owner = $2 AND $3 IN ('', agent);

-- name: page_of_all
SELECT id, tenant, owner, agent, made_at, definition, is_running, version FROM rollouts
WHERE $1 IN ('', agent) AND ($2 = '' OR id < $2) ORDER BY id DESC LIMIT $3;

-- name: total_of_all
SELECT count(*) FROM rollouts WHERE $1 IN ('', agent);

-- name: change
UPDATE rollouts SET definition = $1, is_running = $2, version = version + 1
WHERE id = $3 AND version = $4 RETURNING number;

-- name: running
SELECT id, tenant, owner, agent, made_at, definition, is_running, version FROM rollouts
WHERE is_running ORDER BY number;
