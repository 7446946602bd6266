-- name: scope
SELECT number FROM scopes WHERE agent = ? AND tenant = ? AND owner = ?;

-- name: add_scope
INSERT INTO scopes (agent, tenant, owner) VALUES (?, ?, ?) RETURNING number;

-- name: scope_parts
SELECT agent, tenant, owner FROM scopes WHERE number = ?;

-- name: last_number
-- Numbers of forgotten tasks are never given again: cursors and keys may still name them.
SELECT max(
    coalesce((SELECT max(number) FROM tasks), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'retired_number'), 0)
);

-- name: fact
SELECT value FROM facts WHERE name = ?;

-- name: set_fact
INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value;

-- name: append
-- One statement for every append of a group: a row that lost the race matches nothing.
UPDATE tasks SET
    state = j.value ->> 4, status_at = j.value ->> 5, last_seq = j.value ->> 6,
    fence = j.value ->> 3, holder = ?
FROM json_each(?) AS j
WHERE tasks.number = j.value ->> 0 AND tasks.last_seq = j.value ->> 1
    AND tasks.fence = j.value ->> 2;

-- name: known
SELECT tasks.id, keys.reply FROM keys LEFT JOIN tasks ON tasks.number = keys.task
WHERE keys.scope = ? AND keys.key = ?;

-- name: known_fresh
SELECT tasks.id, fresh_keys.reply FROM fresh_keys LEFT JOIN tasks ON tasks.number = fresh_keys.task
WHERE fresh_keys.scope = ? AND fresh_keys.key = ?;

-- name: keys_after
SELECT scope, key FROM keys INDEXED BY keys_by_key WHERE (scope, key) > (?, ?)
ORDER BY scope, key LIMIT ?;

-- name: head
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE id = ? AND scope = ?;

-- name: at_rest
SELECT number, last_seq, head, artifacts
FROM tasks LEFT JOIN snapshots ON snapshots.task = tasks.number AND seq = last_seq
WHERE id = ? AND scope = ?;

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

-- name: snapshot_at
SELECT seq, head, artifacts FROM snapshots WHERE task = ? AND seq = ?;

-- name: snapshot_head_at
SELECT seq, head, NULL FROM snapshots WHERE task = ? AND seq = ?;

-- name: withhold
INSERT OR REPLACE INTO withheld VALUES (?, ?, ?);

-- name: withheld
SELECT seq, body FROM withheld WHERE task = ?;

-- name: forget_withheld
DELETE FROM withheld WHERE task = ?;

-- name: forget_withheld_of_ended
-- Few are withheld, many have ended: the joins go in this order whatever the planner thinks.
DELETE FROM withheld WHERE task IN (
    SELECT withheld.task FROM withheld CROSS JOIN tasks ON tasks.number = withheld.task
    WHERE state IN (3, 4, 5, 7));

-- name: page
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks INDEXED BY tasks_by_time
WHERE scope = :scope AND status_at >= :since AND (status_at, number) < (:status_at, :number)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: page_of_state
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks INDEXED BY tasks_by_state
WHERE scope = :scope AND state = :state AND status_at >= :since
    AND (status_at, number) < (:status_at, :number)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: page_of_context
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks INDEXED BY tasks_by_context
WHERE scope = :scope AND context = :context AND status_at >= :since
    AND (status_at, number) < (:status_at, :number) AND (:state IS NULL OR state = :state)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: page_of_agent
SELECT number, id, context, scope, tasks.state, status_at, last_seq, fence, holder
FROM tasks INDEXED BY tasks_by_time JOIN errands ON errands.task = tasks.number
WHERE scope = :scope AND status_at >= :since AND (status_at, number) < (:status_at, :number)
    AND errands.agent = :agent AND (:context = '' OR context = :context)
    AND (:state IS NULL OR tasks.state = :state)
ORDER BY status_at DESC, number DESC LIMIT :limit;

-- name: total_of_agent
SELECT count(*) FROM tasks JOIN errands ON errands.task = tasks.number
WHERE scope = :scope AND status_at >= :since AND errands.agent = :agent
    AND (:context = '' OR context = :context) AND (:state IS NULL OR tasks.state = :state);

-- name: survey_scopes
-- A state that no task of a scope has is known without looking at its tasks.
SELECT number FROM scopes
WHERE (:agent = '' OR agent = :agent) AND (:tenant IS NULL OR tenant = :tenant)
    AND (:owner IS NULL OR owner = :owner)
    AND (:own IS NULL OR (tenant = :own_tenant AND owner = :own) OR owner = :unbound)
    AND (:state IS NULL OR EXISTS (SELECT 1 FROM counts
        WHERE counts.scope = scopes.number AND counts.state = :state AND n > 0))
ORDER BY number DESC;

-- name: survey_of_id
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks INDEXED BY tasks_by_id CROSS JOIN scopes ON scopes.number = tasks.scope
WHERE id = :id AND (status_at, tasks.number) < (:status_at, :number) AND status_at >= :since
    AND (:agent = '' OR agent = :agent) AND (:tenant IS NULL OR tenant = :tenant)
    AND (:owner IS NULL OR owner = :owner)
    AND (:own IS NULL OR (tenant = :own_tenant AND owner = :own) OR owner = :unbound)
    AND (:state IS NULL OR state = :state) AND (:context = '' OR context = :context)
ORDER BY status_at DESC, tasks.number DESC LIMIT :limit;

-- name: counts
SELECT state, sum(n) FROM counts GROUP BY state HAVING sum(n) > 0;

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

-- name: abandoned
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks INDEXED BY tasks_unfinished JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (1, 2) AND holder NOT IN (SELECT number FROM workers) AND agent = :agent
UNION ALL
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM (SELECT DISTINCT task FROM notes) AS noted
CROSS JOIN tasks ON tasks.number = noted.task
CROSS JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (6, 8) AND holder NOT IN (SELECT number FROM workers) AND agent = :agent
LIMIT :limit;

-- name: claim
UPDATE tasks SET holder = ?, fence = fence + 1
WHERE number IN (SELECT value FROM json_each(?));

-- name: note_crowds
-- Dead workers that had more than one task under way, on record before some of those are claimed:
-- the rest may be claimed later, and by others.
INSERT OR IGNORE INTO facts (name, value)
SELECT 'crowd:' || holder, x'' FROM tasks INDEXED BY tasks_unfinished
WHERE state IN (1, 2) AND holder IN (SELECT value FROM json_each(?))
GROUP BY holder HAVING count(*) > 1;

-- name: crowds
SELECT CAST(substr(name, 7) AS INTEGER) FROM facts WHERE name GLOB 'crowd:*';

-- name: forget_crowds
DELETE FROM facts WHERE name GLOB 'crowd:*' AND CAST(substr(name, 7) AS INTEGER) NOT IN
    (SELECT holder FROM tasks INDEXED BY tasks_unfinished WHERE state IN (1, 2));

-- name: leave_note
INSERT INTO notes (task, body)
SELECT number, ? FROM tasks WHERE number = ? AND state NOT IN (3, 4, 5, 7);

-- name: notes
SELECT number, body FROM notes WHERE task = ? ORDER BY number;

-- name: noted
-- Few notes, many tasks: the joins go in this order whatever the planner thinks.
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM (SELECT DISTINCT task FROM notes) AS noted
CROSS JOIN tasks ON tasks.number = noted.task
CROSS JOIN scopes ON scopes.number = tasks.scope
WHERE holder = ? AND state NOT IN (3, 4, 5, 7) AND agent = ?;

-- name: drop_notes
DELETE FROM notes WHERE number IN (SELECT value FROM json_each(?));

-- name: overdue
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM deadlines INDEXED BY deadlines_by_time
CROSS JOIN tasks ON tasks.number = deadlines.task
CROSS JOIN scopes ON scopes.number = tasks.scope
WHERE at <= ? AND state NOT IN (3, 4, 5, 7) AND agent = ? ORDER BY at LIMIT 100;

-- name: met_deadlines
SELECT deadlines.task FROM deadlines INDEXED BY deadlines_by_time
CROSS JOIN tasks ON tasks.number = deadlines.task
WHERE at <= ? AND state IN (3, 4, 5, 7) LIMIT 5000;

-- name: drop_deadlines
DELETE FROM deadlines WHERE task IN (SELECT value FROM json_each(?));

-- name: put_push
INSERT INTO pushes (task, id, config, sealed, holder, is_open, cursor, tries, due_at, failing_since,
    problem)
VALUES (?, ?, ?, ?, ?, 1, ?, 0, 0, 0, '');

-- name: move_letters
UPDATE dead_letters SET push = ? WHERE push = ?;

-- name: drop_push
DELETE FROM pushes WHERE task = ? AND id = ?;

-- name: drop_letters
DELETE FROM dead_letters WHERE push IN (SELECT number FROM pushes WHERE task = ? AND id = ?);

-- name: pushes
SELECT pushes.number, task, scope, config, sealed, cursor, tries, due_at, failing_since, is_open,
    problem
FROM pushes JOIN tasks ON tasks.number = pushes.task WHERE task = ? ORDER BY pushes.id;

-- name: push_places
SELECT number, id, cursor FROM pushes WHERE task = ?;

-- name: abandoned_pushes
SELECT pushes.number, task, scope, config, sealed, cursor, tries, due_at, failing_since, is_open,
    problem
FROM pushes INDEXED BY pushes_open JOIN tasks ON tasks.number = pushes.task
WHERE is_open = 1 AND pushes.holder NOT IN (SELECT number FROM workers) LIMIT ?;

-- name: claim_pushes
UPDATE pushes SET holder = ? WHERE number IN (SELECT value FROM json_each(?));

-- name: settle
UPDATE pushes SET cursor = ?, tries = ?, due_at = ?, failing_since = ?, is_open = ?, problem = ?
WHERE number = ? AND holder = ?;

-- name: add_letter
INSERT OR REPLACE INTO dead_letters VALUES (?, ?, ?, ?, ?);

-- name: drop_letter
DELETE FROM dead_letters WHERE push = ? AND seq = ?;

-- name: reopen_push
UPDATE pushes SET is_open = 1, tries = 0, due_at = 0, failing_since = 0, problem = '', holder = 0
WHERE number = ? AND is_open = 0;

-- name: dead_letters
SELECT push, config, seq, dead_letters.tries, at, dead_letters.problem
FROM dead_letters JOIN pushes ON pushes.number = dead_letters.push
WHERE (at, push, seq) < (:at, :push, :seq)
ORDER BY at DESC, push DESC, seq DESC LIMIT :limit;

-- name: letters_of
SELECT push, config, seq, dead_letters.tries, at, dead_letters.problem
FROM pushes CROSS JOIN dead_letters ON dead_letters.push = pushes.number
WHERE task = ? ORDER BY push, seq;

-- name: receivers
-- One that was given up keeps its failure; one that got everything has none.
SELECT pushes.number, task, agent, tenant, owner, config, last_seq, cursor, tries, due_at,
    failing_since, is_open, problem
FROM pushes JOIN tasks ON tasks.number = pushes.task JOIN scopes ON scopes.number = tasks.scope
WHERE pushes.number < :before
    AND (:failing = 0 OR (failing_since > 0 AND (is_open = 1 OR cursor < last_seq)))
ORDER BY pushes.number DESC LIMIT :limit;

-- name: doomed_by_age
SELECT tasks.number, tasks.scope, state FROM scopes
JOIN tasks INDEXED BY tasks_by_state ON tasks.scope = scopes.number
WHERE state IN (3, 4, 5, 7) AND status_at < ?
    AND NOT EXISTS (SELECT 1 FROM pushes WHERE task = tasks.number AND is_open = 1) LIMIT ?;

-- name: ended
SELECT coalesce(sum(n), 0) FROM counts WHERE state IN (3, 4, 5, 7);

-- name: doomed_by_number
SELECT number, scope, state FROM tasks WHERE state IN (3, 4, 5, 7)
    AND NOT EXISTS (SELECT 1 FROM pushes WHERE task = tasks.number AND is_open = 1)
ORDER BY number LIMIT ?;

-- name: stored
-- The lengths stand at the beginning of each row: no log is read for it.
SELECT coalesce(sum(length(bodies)), 0)
FROM scopes
CROSS JOIN tasks INDEXED BY tasks_by_time ON tasks.scope = scopes.number
CROSS JOIN events ON position > tasks.number << 20 AND position <= (tasks.number << 20 | 1048575)
WHERE (tenant = ? AND owner = ?) OR owner = ?;

-- name: forget_task
DELETE FROM tasks WHERE number = ?;

-- name: forget_events
DELETE FROM events WHERE position > ? AND position <= ?;

-- name: forget_snapshot
DELETE FROM snapshots WHERE task = ?;

-- name: forget_notes
DELETE FROM notes WHERE task = ?;

-- name: forget_deadline
DELETE FROM deadlines WHERE task = ?;

-- name: forget_letters
DELETE FROM dead_letters WHERE push IN (SELECT number FROM pushes WHERE task = ?);

-- name: forget_pushes
DELETE FROM pushes WHERE task = ?;

-- name: forget_keys
DELETE FROM keys WHERE made_at < ?
    AND (task IS NULL OR NOT EXISTS (SELECT 1 FROM tasks WHERE number = keys.task));

-- name: insert_tasks
INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_events
INSERT INTO events VALUES (?, ?, ?, ?);

-- name: insert_keys
INSERT INTO keys VALUES (?, ?, ?, ?, ?);

-- name: insert_fresh_keys
INSERT INTO fresh_keys VALUES (?, ?, ?, ?, ?);

-- name: has_fresh_keys
SELECT EXISTS (SELECT 1 FROM fresh_keys);

-- name: index_fresh_keys
-- In the order of the index, so that each of its pages is written once. Of two that are the same the
-- first counts.
INSERT OR IGNORE INTO keys SELECT scope, key, task, reply, made_at FROM fresh_keys ORDER BY scope, key;

-- name: clear_fresh_keys
DELETE FROM fresh_keys;

-- name: insert_snapshots
INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?);

-- name: insert_deadline
INSERT INTO deadlines VALUES (?, ?);

-- name: count
INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n;

-- name: uncount
UPDATE counts SET n = n - 1 WHERE scope = ? AND state = ?;

-- name: tables
SELECT count(*) FROM sqlite_schema;

-- name: last_seqs
SELECT number, last_seq FROM tasks WHERE number IN (SELECT value FROM json_each(?));
