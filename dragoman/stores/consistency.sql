-- name: file_log
SELECT position >> 20 AS task, position & 1048575 AS last, n FROM events

-- name: database_log
SELECT task, last, n FROM events

-- name: counters
SELECT count(*), min(scope) FROM (
    SELECT scope, state, sum(n) AS n FROM (
        SELECT scope, state, n FROM counts
        UNION ALL SELECT scope, state, -count(*) FROM tasks GROUP BY scope, state
    ) AS both_of GROUP BY scope, state
) AS differing WHERE n <> 0

-- name: gaps
SELECT count(*), min(task) FROM (
    SELECT task, last - n AS begins, lag(last, 1, 0) OVER (PARTITION BY task ORDER BY last) AS ended
    FROM ({log}) AS log
) AS pieces WHERE begins <> ended

-- name: ends
SELECT count(*), min(number) FROM tasks
LEFT JOIN (SELECT task, max(last) AS last FROM ({log}) AS log GROUP BY task) AS ends
    ON task = number WHERE coalesce(last, 0) <> last_seq

-- name: events
SELECT count(*), min(task) FROM (SELECT DISTINCT task FROM ({log}) AS log) AS logged
WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE number = task)

-- name: snapshots
SELECT count(*), min(task) FROM snapshots JOIN tasks ON number = task WHERE seq > last_seq

-- name: scopes
SELECT count(*), min(number) FROM tasks
WHERE NOT EXISTS (SELECT 1 FROM scopes WHERE scopes.number = tasks.scope)

-- name: keys
SELECT count(*), min(number) FROM keys JOIN tasks ON number = keys.task
WHERE keys.scope <> tasks.scope

-- name: receivers
SELECT count(*), min(task) FROM pushes JOIN tasks ON tasks.number = task WHERE cursor > last_seq

-- name: letters
SELECT count(*), min(push) FROM dead_letters
WHERE NOT EXISTS (SELECT 1 FROM pushes WHERE pushes.number = push)

-- name: no_task
SELECT count(*), min(task) FROM {table}
WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.number = {table}.task)
