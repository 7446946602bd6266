-- name: tasks
SELECT coalesce(sum(n), 0)::bigint FROM counts;

-- name: workers
-- Those that were marked gone are none any more.
SELECT number, coalesce(at, joined_at) + lease < clock_timestamp(), has_session(number),
    coalesce(at, joined_at) + lease < clock_timestamp() - make_interval(secs => $1),
    (SELECT count(*) FROM tasks WHERE state IN (1, 2) AND holder = workers.number)
FROM workers LEFT JOIN beats ON worker = number WHERE gone_at IS NULL ORDER BY number;

-- name: held
-- The workers whose tasks are not to be taken over (yet).
SELECT number FROM workers LEFT JOIN beats ON worker = number
WHERE coalesce(gone_at, coalesce(at, joined_at) + lease)
    >= clock_timestamp() - make_interval(secs => $1);

-- name: before
SELECT now_ms() - ($1::float8 * 1000)::bigint;

-- name: unfinished
SELECT count(*) FILTER (WHERE status_at < $1 AND holder <> ALL ($2::int[])), count(*)
FROM tasks WHERE state IN (1, 2);

-- name: orphaned_agents
SELECT DISTINCT agent FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (1, 2) AND status_at < $1 AND holder <> ALL ($2::int[]) ORDER BY agent;

-- name: notes
SELECT count(*) FILTER (WHERE state IN (3, 4, 5, 7)),
    count(*) FILTER (WHERE state NOT IN (3, 4, 5, 7) AND holder <> ALL ($1::int[])),
    count(*)
FROM notes JOIN tasks ON tasks.number = notes.task;

-- name: overdue
SELECT count(*) FROM deadlines JOIN tasks ON tasks.number = deadlines.task
WHERE at < $1 AND state NOT IN (3, 4, 5, 7);

-- name: pushes
-- A receiver that was given up keeps its failure; one that got everything has none.
SELECT count(*) FILTER (WHERE is_open AND failing_since > 0),
    count(*) FILTER (WHERE NOT is_open AND failing_since > 0 AND cursor < last_seq),
    count(*) FILTER (WHERE is_open AND cursor < last_seq AND status_at < $1 AND due_at < $1
        AND pushes.holder <> ALL ($2::int[]))
FROM pushes JOIN tasks ON tasks.number = pushes.task;

-- name: stuck
SELECT count(*) FROM pushes JOIN tasks ON tasks.number = pushes.task
WHERE is_open AND cursor < last_seq AND state IN (3, 4, 5, 7)
    AND status_at < $1 AND due_at < $1 AND pushes.holder = ANY ($2::int[]);

-- name: newest
SELECT max((SELECT max(status_at) FROM tasks WHERE scope = scopes.number)) FROM scopes;

-- name: dead_letters
SELECT count(*), coalesce(max(at), 0) FROM dead_letters;

-- name: all_pushes
SELECT pushes.number, pushes.task, agent, tenant, owner, config, last_seq, cursor, tries, due_at,
    failing_since, is_open, problem
FROM pushes JOIN tasks ON tasks.number = pushes.task JOIN scopes ON scopes.number = tasks.scope
ORDER BY pushes.number;

-- name: letters
SELECT push, config, seq, dead_letters.tries, at, dead_letters.problem
FROM dead_letters JOIN pushes ON pushes.number = dead_letters.push
ORDER BY push, seq;
