-- name: page
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE scope = :scope AND (status_at, tasks.number) < (:status_at, :number)
    AND status_at >= :since AND (:state IS NULL OR state = :state)
    AND (:context = '' OR context = :context)
ORDER BY status_at DESC, tasks.number DESC LIMIT :limit;

-- name: by_id
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE id = ? AND (? = '' OR agent = ?) ORDER BY tasks.number;

-- name: by_number
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE tasks.number = ?;

-- name: after
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE tasks.number > ? AND (? = '' OR agent = ?) ORDER BY tasks.number LIMIT ?;

-- name: live
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (1, 2, 6, 8) AND (? = '' OR agent = ?) ORDER BY tasks.number;

-- name: scopes
SELECT number FROM scopes WHERE ? = '' OR agent = ?;

-- name: highest
SELECT coalesce(max(number), 0) FROM tasks;

-- name: events
SELECT position & 1048575, n, bodies FROM events
WHERE position > ? AND position <= ? ORDER BY position;

-- name: snapshot
SELECT seq, head, artifacts FROM snapshots WHERE task = ?;
