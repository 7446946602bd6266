-- name: unfinished
SELECT count(*) FILTER (WHERE status_at < :before AND NOT is_held), count(*)
FROM (SELECT status_at, holder IN (SELECT value FROM json_each(:held)) AS is_held
    FROM tasks INDEXED BY tasks_unfinished WHERE state IN (1, 2));

-- name: orphaned_agents
SELECT DISTINCT agent FROM tasks INDEXED BY tasks_unfinished
JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (1, 2) AND status_at < :before
    AND holder NOT IN (SELECT value FROM json_each(:held))
ORDER BY agent;

-- name: notes
SELECT count(*) FILTER (WHERE state IN (3, 4, 5, 7)),
    count(*) FILTER (WHERE state NOT IN (3, 4, 5, 7)
        AND holder NOT IN (SELECT value FROM json_each(:held))),
    count(*)
FROM notes JOIN tasks ON tasks.number = notes.task;

-- name: overdue
SELECT count(*) FROM deadlines JOIN tasks ON tasks.number = deadlines.task
WHERE at < :before AND state NOT IN (3, 4, 5, 7);

-- name: pushes
-- A receiver that was given up keeps its failure; one that got everything has none.
SELECT count(*) FILTER (WHERE is_open = 1 AND failing_since > 0),
    count(*) FILTER (WHERE is_open = 0 AND failing_since > 0 AND cursor < last_seq),
    count(*) FILTER (WHERE is_open = 1 AND cursor < last_seq
        AND status_at < :before AND due_at < :before
        AND pushes.holder NOT IN (SELECT value FROM json_each(:held)))
FROM pushes JOIN tasks ON tasks.number = pushes.task;

-- name: newest
SELECT max((SELECT max(status_at) FROM tasks WHERE scope = scopes.number)) FROM scopes;

-- name: tasks
SELECT coalesce(sum(n), 0) FROM counts;

-- name: workers
SELECT number, expires, lease,
    (SELECT count(*) FROM tasks INDEXED BY tasks_unfinished
        WHERE state IN (1, 2) AND holder = workers.number)
FROM workers ORDER BY number;

-- name: dead_letters
SELECT count(*), coalesce(max(at), 0) FROM dead_letters;

-- name: stuck
SELECT count(*) FROM pushes JOIN tasks ON tasks.number = pushes.task
WHERE is_open = 1 AND cursor < last_seq AND state IN (3, 4, 5, 7)
    AND status_at < :before AND due_at < :before
    AND pushes.holder IN (SELECT value FROM json_each(:live));

-- name: all_pushes
SELECT pushes.number, pushes.task, agent, tenant, owner, config, last_seq, cursor, tries, due_at,
    failing_since, is_open, problem
FROM pushes JOIN tasks ON tasks.number = pushes.task JOIN scopes ON scopes.number = tasks.scope
ORDER BY pushes.number;

-- name: letters
SELECT push, config, seq, dead_letters.tries, at, dead_letters.problem
FROM dead_letters JOIN pushes ON pushes.number = dead_letters.push
ORDER BY push, seq;
