-- name: scope
SELECT number FROM scopes WHERE agent = ? AND tenant = ? AND owner = ?;

-- name: add_scope
INSERT INTO scopes (agent, tenant, owner) VALUES (?, ?, ?) RETURNING number;

-- name: scope_parts
SELECT agent, tenant, owner FROM scopes WHERE number = ?;

-- name: last_number
SELECT coalesce(max(number), 0) FROM tasks;

-- name: retired_number
SELECT value FROM facts WHERE name = 'retired_number';

-- name: fact
SELECT value FROM facts WHERE name = ?;

-- name: set_fact
INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value;

-- name: append
-- One statement for every append of a group: a row that lost the race matches nothing.
UPDATE tasks SET
    state = j.value ->> 4, status_at = j.value ->> 5, last_seq = j.value ->> 6,
    fence = j.value ->> 3
FROM json_each(?) AS j
WHERE tasks.number = j.value ->> 0 AND tasks.last_seq = j.value ->> 1
    AND tasks.fence = j.value ->> 2;

-- name: known
SELECT tasks.id, keys.reply FROM keys LEFT JOIN tasks ON tasks.number = keys.task
WHERE keys.scope = ? AND keys.key = ?;

-- name: head
SELECT number, id, context, scope, state, status_at, last_seq, fence FROM tasks
WHERE id = ? AND scope = ?;

-- name: at_rest
SELECT number, id, context, scope, state, status_at, last_seq, fence, seq, head, artifacts
FROM tasks LEFT JOIN snapshots ON snapshots.task = tasks.number AND seq = last_seq
WHERE id = ? AND scope = ?;

-- name: keys
SELECT key FROM keys;

-- name: read
SELECT position & 1048575, n, bodies FROM events
WHERE position > ? AND position <= ? ORDER BY position;

-- name: read_without_artifacts
SELECT position & 1048575, n, bodies FROM events
WHERE position > ? AND position <= ? AND kind = 0 ORDER BY position;

-- name: snapshot
SELECT seq, head, artifacts FROM snapshots WHERE task = ?;

-- name: snapshot_head
SELECT seq, head, NULL FROM snapshots WHERE task = ?;

-- name: page
SELECT number, id, context, scope, state, status_at, last_seq, fence
FROM tasks INDEXED BY tasks_by_time
WHERE scope = :scope AND status_at >= :since AND (status_at, number) < (:status_at, :number)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: page_of_state
SELECT number, id, context, scope, state, status_at, last_seq, fence
FROM tasks INDEXED BY tasks_by_state
WHERE scope = :scope AND state = :state AND status_at >= :since
    AND (status_at, number) < (:status_at, :number)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: page_of_context
SELECT number, id, context, scope, state, status_at, last_seq, fence
FROM tasks INDEXED BY tasks_by_context
WHERE scope = :scope AND context = :context AND status_at >= :since
    AND (status_at, number) < (:status_at, :number) AND (:state IS NULL OR state = :state)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: total
SELECT coalesce(sum(n), 0) FROM counts
WHERE scope = :scope AND (:state IS NULL OR state = :state);

-- name: total_since
SELECT count(*) FROM tasks
WHERE scope = :scope AND status_at >= :since AND (:state IS NULL OR state = :state);

-- name: total_of_context
SELECT count(*) FROM tasks
WHERE scope = :scope AND context = :context AND status_at >= :since
    AND (:state IS NULL OR state = :state);

-- name: unfinished
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence
FROM scopes JOIN tasks INDEXED BY tasks_by_state ON tasks.scope = scopes.number
WHERE agent = ? AND state IN (1, 2) ORDER BY tasks.number;

-- name: doomed_by_age
SELECT tasks.number, tasks.scope, state FROM scopes
JOIN tasks INDEXED BY tasks_by_state ON tasks.scope = scopes.number
WHERE state IN (3, 4, 5, 7) AND status_at < ? LIMIT ?;

-- name: ended
SELECT coalesce(sum(n), 0) FROM counts WHERE state IN (3, 4, 5, 7);

-- name: doomed_by_number
SELECT number, scope, state FROM tasks WHERE state IN (3, 4, 5, 7)
ORDER BY number LIMIT ?;

-- name: forget_task
DELETE FROM tasks WHERE number = ?;

-- name: forget_events
DELETE FROM events WHERE position > ? AND position <= ?;

-- name: forget_snapshot
DELETE FROM snapshots WHERE task = ?;

-- name: forget_keys
DELETE FROM keys WHERE made_at < ?
    AND (task IS NULL OR NOT EXISTS (SELECT 1 FROM tasks WHERE number = keys.task));
