-- name: lock_task
-- Receivers of a task are added one at a time, so that there are never more than may be.
SELECT 1 FROM tasks WHERE number = $1 FOR UPDATE;

-- name: places
SELECT number, id, cursor FROM pushes WHERE task = $1;

-- name: put
INSERT INTO pushes (task, id, config, sealed, holder, cursor) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING number;

-- name: drop
DELETE FROM pushes WHERE task = $1 AND id = $2;

-- name: move_letters
UPDATE dead_letters SET push = $1 WHERE push = $2;

-- name: drop_letters
DELETE FROM dead_letters WHERE push IN (SELECT number FROM pushes WHERE task = $1 AND id = $2);

-- name: of
SELECT pushes.number, task, scope, config, sealed, cursor, tries, due_at, failing_since, is_open,
    problem
FROM pushes JOIN tasks ON tasks.number = pushes.task WHERE task = $1 ORDER BY pushes.id COLLATE "C";

-- name: claimable
SELECT number, holder FROM pushes
WHERE is_open AND holder NOT IN (SELECT number FROM workers WHERE gone_at IS NULL)
ORDER BY number LIMIT $1;

-- name: claim
-- One that this worker took by the same call before is returned again: that answer may be lost.
WITH wanted AS MATERIALIZED (
    SELECT pushes.number FROM unnest($2::bigint[], $3::int[]) AS found (number, holder)
    JOIN pushes ON pushes.number = found.number
    WHERE is_open AND pushes.holder IN (found.holder, $1)
    ORDER BY pushes.number FOR UPDATE OF pushes SKIP LOCKED
)
UPDATE pushes SET holder = $1 FROM wanted, tasks
WHERE pushes.number = wanted.number AND tasks.number = pushes.task
RETURNING pushes.number, task, tasks.scope, config, sealed, cursor, tries, due_at, failing_since,
    is_open, problem;

-- name: settle
WITH settled AS (
    UPDATE pushes SET cursor = $1, tries = $2, due_at = $3, failing_since = $4, is_open = $5,
        problem = $6
    WHERE number = $7 AND holder = $8 RETURNING number
), kept AS (
    INSERT INTO dead_letters (push, seq, tries, at, problem)
    SELECT number, $9, $10, CASE WHEN $11::bigint > 0 THEN $11::bigint ELSE now_ms() END, $12
    FROM settled WHERE $9::int IS NOT NULL
    ON CONFLICT (push, seq) DO UPDATE
    SET tries = excluded.tries, at = excluded.at, problem = excluded.problem
)
SELECT count(*) FROM settled;

-- name: drop_letter
DELETE FROM dead_letters WHERE push = $1 AND seq = $2;

-- name: reopen
UPDATE pushes SET is_open = true, tries = 0, due_at = 0, failing_since = 0, problem = '', holder = 0
WHERE number = $1 AND NOT is_open;

-- name: dead_letters
SELECT push, config, seq, dead_letters.tries, at, dead_letters.problem
FROM dead_letters JOIN pushes ON pushes.number = dead_letters.push
WHERE (at, push, seq) < ($2, $3, $4)
ORDER BY at DESC, push DESC, seq DESC LIMIT $1;

-- name: letters_of
SELECT push, config, seq, dead_letters.tries, at, dead_letters.problem
FROM dead_letters JOIN pushes ON pushes.number = dead_letters.push
WHERE task = $1 ORDER BY push, seq;

-- name: receivers
-- One that was given up keeps its failure; one that got everything has none.
SELECT pushes.number, task, agent, tenant, owner, config, last_seq, cursor, tries, due_at,
    failing_since, is_open, problem
FROM pushes JOIN tasks ON tasks.number = pushes.task JOIN scopes ON scopes.number = tasks.scope
WHERE pushes.number < $2
    AND (NOT $3 OR (failing_since > 0 AND (is_open OR cursor < last_seq)))
ORDER BY pushes.number DESC LIMIT $1;
