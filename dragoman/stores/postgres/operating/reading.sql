-- name: version
SELECT coalesce(sum(last_group), 0)::bigint + 1000003 * count(*) FROM workers;

-- name: page
-- By scope, since that is how the index goes.
SELECT found.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM scopes CROSS JOIN LATERAL (
    SELECT number, id, context, state, status_at, last_seq FROM tasks
    WHERE scope = scopes.number AND (status_at, number) < ($1, $2) AND status_at >= $3
        AND ($4::smallint IS NULL OR state = $4) AND ($5 = '' OR context = $5)
    ORDER BY status_at DESC, number DESC LIMIT $6
) AS found
WHERE $7 = '' OR agent = $7
ORDER BY status_at DESC, found.number DESC LIMIT $6;

-- name: by_id
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE id = $1 AND ($2 = '' OR agent = $2) ORDER BY tasks.number;

-- name: by_number
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE tasks.number = ANY ($1::bigint[]) ORDER BY tasks.number;

-- name: within
-- The first tasks after the first and before the second number of each range.
SELECT found.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM unnest($1::bigint[], $2::bigint[]) AS range (after, until) CROSS JOIN LATERAL (
    SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
    FROM tasks JOIN scopes ON scopes.number = tasks.scope
    WHERE tasks.number > range.after AND tasks.number < range.until AND ($3 = '' OR agent = $3)
    ORDER BY tasks.number LIMIT $4
) AS found ORDER BY found.number LIMIT $4;

-- name: live
SELECT tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (1, 2, 6, 8) AND ($1 = '' OR agent = $1) ORDER BY tasks.number;

-- name: highest
SELECT coalesce(max(number), 0) FROM tasks;

-- name: open_blocks
-- Where tasks with lower numbers than the highest may still come to be: the newest of each.
SELECT first, coalesce(
    (SELECT max(number) FROM tasks WHERE number >= first AND number < first + 4096), first - 1)
FROM (SELECT DISTINCT unnest(ARRAY[block, before]) AS first FROM workers WHERE gone_at IS NULL)
    AS blocks
WHERE first > 0 ORDER BY first;
