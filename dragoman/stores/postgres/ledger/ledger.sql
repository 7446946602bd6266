-- An entry's number is its transfer's number << 3, and its place in the transfer.

-- Sealing

-- name: lock_chains
LOCK TABLE chains IN SHARE ROW EXCLUSIVE MODE;

-- name: try_lock_chains
LOCK TABLE chains IN SHARE ROW EXCLUSIVE MODE NOWAIT;

-- name: last_unsealed
SELECT max(place) FROM transfers WHERE number IS NULL;

-- name: unsealed
SELECT id, kind, at, task, reference, memo, legs, opens_with, is_counted FROM transfers
WHERE number IS NULL AND ($1::bigint IS NULL OR place <= $1) ORDER BY place LIMIT $2;

-- name: last_transfer
SELECT number, at, hash FROM transfers WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1;

-- name: open_accounts
INSERT INTO accounts (kind, owner) SELECT 'user', owner FROM unnest($1::text[]) AS wanted (owner)
WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE kind = 'user' AND accounts.owner = wanted.owner)
ORDER BY owner ON CONFLICT DO NOTHING RETURNING owner;

-- name: lock_accounts
SELECT number, kind, owner, balance, held, ahead FROM accounts
WHERE (kind, owner) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY number FOR UPDATE;

-- name: set_accounts
UPDATE accounts SET balance = given.balance, held = given.held, ahead = given.ahead
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[])
    AS given (number, balance, held, ahead)
WHERE accounts.number = given.number;

-- name: seal
UPDATE transfers SET number = given.number, at = given.at, hash = given.hash, legs = NULL
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bytea[]) AS given (id, number, at, hash)
WHERE transfers.id = given.id;

-- name: add_transfers
INSERT INTO transfers (number, id, kind, at, task, reference, memo, hash)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::text[],
    $7::text[], $8::bytea[]);

-- name: add_entries
INSERT INTO entries (number, account, kind, amount, held, balance, reserved)
SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[]);

-- Accounts and transfers

-- name: balance
SELECT balance, held FROM accounts WHERE kind = $1 AND owner = $2;

-- name: balances
SELECT kind, owner, balance, held FROM accounts
ORDER BY kind COLLATE "C", owner COLLATE "C" LIMIT $1 OFFSET $2;

-- name: statement
SELECT entries.number, transfers.id, at, entries.kind, amount, entries.held, entries.balance,
    reserved, transfers.task, reference, memo,
    (SELECT escrow FROM orders WHERE orders.task = transfers.task)
FROM entries JOIN transfers ON transfers.number = entries.number >> 3
WHERE account = (SELECT number FROM accounts WHERE kind = 'user' AND owner = $1)
    AND entries.kind = ANY ($2::text[]) AND entries.number < $3
ORDER BY entries.number DESC LIMIT $4 OFFSET $5;

-- name: statement_total
SELECT count(*) FROM entries
WHERE account = (SELECT number FROM accounts WHERE kind = 'user' AND owner = $1)
    AND kind = ANY ($2::text[]);

-- name: days
-- Times of transfers never fall, so a period is at the end.
SELECT to_char(to_timestamp(at / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day,
    -coalesce(sum(amount) FILTER (WHERE entries.kind = 'task_debit'), 0)::bigint,
    coalesce(sum(amount) FILTER (WHERE entries.kind = 'task_credit'), 0)::bigint
FROM entries JOIN transfers ON transfers.number = entries.number >> 3
WHERE account = (SELECT number FROM accounts WHERE kind = 'user' AND owner = $1)
    AND entries.number >> 3 > coalesce((
        SELECT number FROM transfers WHERE number IS NOT NULL AND at < $2
        ORDER BY at DESC, number DESC LIMIT 1), 0)
    AND entries.kind IN ('task_debit', 'task_credit')
GROUP BY day ORDER BY day;

-- name: transfer_number
SELECT number FROM transfers WHERE id = $1 AND number IS NOT NULL;

-- name: transfers
SELECT transfers.number, id, transfers.kind, at, task, reference, memo, hash, accounts.kind, owner,
    entries.kind, amount, entries.held, entries.account, entries.balance, reserved
FROM transfers JOIN entries
    ON entries.number BETWEEN transfers.number << 3 AND (transfers.number << 3) + 7
JOIN accounts ON accounts.number = entries.account
WHERE transfers.number > $1 AND transfers.number <= $1 + $2 ORDER BY entries.number;

-- name: accounts
SELECT number, kind, owner, balance, held FROM accounts ORDER BY number;

-- name: unsealed_legs
SELECT kind, task, reference, legs FROM transfers WHERE number IS NULL ORDER BY place;

-- name: entry_count
SELECT count(*) FROM entries;

-- Orders

-- name: put_orders
INSERT INTO orders SELECT given.* FROM jsonb_populate_recordset(NULL::orders, $1::jsonb) AS given;

-- name: set_order
-- The order, and what it was when the change was decided on.
UPDATE orders SET agent = a.agent, payee = a.payee, skill = a.skill, held = a.held,
    price = a.price, charged = a.charged, fee = a.fee, holds = a.holds, due_at = a.due_at,
    ended_at = a.ended_at, state = a.state, cause = a.cause, moves = a.moves, escrow = a.escrow,
    release_at = a.release_at, fee_due = a.fee_due
FROM jsonb_populate_record(NULL::orders, $1::jsonb) AS a,
    jsonb_populate_record(NULL::orders, $2::jsonb) AS b
WHERE orders.task = a.task AND orders.agent = b.agent AND orders.held = b.held
    AND orders.charged = b.charged AND orders.holds = b.holds AND orders.ended_at = b.ended_at
    AND orders.is_observed = b.is_observed AND orders.escrow = b.escrow
    AND orders.release_at = b.release_at;

-- name: open_orders
-- Nothing of a task that ends a second time.
SELECT * FROM orders WHERE task = ANY ($1::bigint[]) AND ended_at = 0;

-- name: order
SELECT * FROM orders WHERE task = $1;

-- name: order_in
SELECT orders.* FROM tasks JOIN orders ON orders.task = tasks.number
WHERE tasks.id = $1 AND tasks.scope = $2;

-- name: orders_after
SELECT * FROM orders WHERE task > $1 ORDER BY task LIMIT $2;

-- name: facts
SELECT orders.*, (SELECT string_agg(type, ',') FROM trust_events
        WHERE trust_events.task = orders.task AND trust_events.task > 0),
    (SELECT rating FROM ratings WHERE ratings.task = orders.task),
    (SELECT outcome FROM disputes WHERE disputes.task = orders.task)
FROM orders WHERE task_id = $1 ORDER BY task DESC;

-- name: due
SELECT orders.*, (SELECT string_agg(type, ',') FROM trust_events
        WHERE trust_events.task = orders.task AND trust_events.task > 0),
    (SELECT rating FROM ratings WHERE ratings.task = orders.task),
    (SELECT outcome FROM disputes WHERE disputes.task = orders.task)
FROM orders WHERE escrow = 'delivered' AND release_at <= $1 ORDER BY release_at LIMIT $2;

-- name: in_escrow
-- By the indexes of what is delivered and of what is disputed.
SELECT * FROM orders WHERE task IN (
    SELECT task FROM orders WHERE escrow = 'delivered' AND $1 IN (requester, payee)
    UNION ALL
    SELECT orders.task FROM disputes JOIN orders ON orders.task = disputes.task
    WHERE disputes.outcome = '' AND escrow = 'disputed' AND $1 IN (orders.requester, payee))
    AND task < $2
ORDER BY task DESC LIMIT $3;

-- name: in_escrow_total
SELECT (SELECT count(*) FROM orders WHERE escrow = 'delivered' AND $1 IN (requester, payee))
+ (SELECT count(*) FROM disputes JOIN orders ON orders.task = disputes.task
    WHERE disputes.outcome = '' AND escrow = 'disputed' AND $1 IN (orders.requester, payee));

-- name: stale
-- Tasks that have ended, or that are gone, while their orders have not.
SELECT orders.*, tasks.state FROM orders LEFT JOIN tasks ON tasks.number = orders.task
WHERE ended_at = 0 AND (tasks.state IS NULL OR tasks.state IN (3, 4, 5, 7)) ORDER BY orders.task;

-- name: orders
SELECT orders.* FROM (
    SELECT number FROM tasks WHERE scope = $1 AND state = ANY ($2::smallint[])
    ORDER BY number DESC LIMIT $3 OFFSET $4) AS page
JOIN orders ON orders.task = page.number ORDER BY orders.task DESC;

-- name: orders_total
SELECT coalesce(sum(n), 0)::bigint FROM counts WHERE scope = $1 AND state = ANY ($2::smallint[]);

-- name: orders_of_agent
SELECT orders.* FROM tasks JOIN orders ON orders.task = tasks.number
WHERE tasks.scope = $1 AND tasks.state = ANY ($2::smallint[])
    AND ($3 = '' OR orders.agent = $3)
    AND ($4::boolean IS NULL OR (orders.agent <> '') = $4)
ORDER BY tasks.number DESC LIMIT $5 OFFSET $6;

-- name: orders_of_agent_total
SELECT count(*) FROM tasks JOIN orders ON orders.task = tasks.number
WHERE tasks.scope = $1 AND tasks.state = ANY ($2::smallint[])
    AND ($3 = '' OR orders.agent = $3)
    AND ($4::boolean IS NULL OR (orders.agent <> '') = $4);

-- Purchases

-- name: put_checkout
INSERT INTO checkouts (id, owner, package, credits, cents, made_at, paid_at)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: checkout
SELECT id, owner, package, credits, cents, made_at, paid_at FROM checkouts WHERE id = $1;

-- name: mark_paid
UPDATE checkouts SET paid_at = $1 WHERE id = $2 AND paid_at = 0;

-- name: record_payment
INSERT INTO payment_events VALUES ($1, $2, $3);

-- name: payment
SELECT 1 FROM payment_events WHERE id = $1;
