-- Orders are in the table `errands`: the name that files have had since the first ledger.
-- An entry's number is its transfer's number << 3, and its place in the transfer.

-- name: balance
SELECT balance, held FROM accounts WHERE kind = ? AND owner = ?;

-- name: balances
SELECT kind, owner, balance, held FROM accounts ORDER BY kind, owner LIMIT ? OFFSET ?;

-- name: statement
-- From the latest entry of the account back, whatever the planner thinks.
SELECT entries.number, transfers.id, at, entries.kind, amount, entries.held, entries.balance,
    reserved, transfers.task, reference, memo,
    (SELECT escrow FROM errands WHERE errands.task = transfers.task)
FROM accounts CROSS JOIN entries INDEXED BY entries_by_account ON account = accounts.number
CROSS JOIN transfers ON transfers.number = entries.number >> 3
WHERE accounts.kind = 'user' AND owner = :owner AND entries.number < :before
    AND entries.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY entries.number DESC LIMIT :limit OFFSET :offset;

-- name: statement_total
SELECT count(*) FROM accounts CROSS JOIN entries INDEXED BY entries_by_account
    ON account = accounts.number
WHERE accounts.kind = 'user' AND owner = :owner
    AND entries.kind IN (SELECT value FROM json_each(:kinds));

-- name: last_transfer_before
-- Times of transfers never fall, so a period is at the end.
SELECT number FROM transfers WHERE at < ? ORDER BY number DESC LIMIT 1;

-- name: days
SELECT date(at / 1000, 'unixepoch') AS day,
    -coalesce(sum(amount) FILTER (WHERE entries.kind = 'task_debit'), 0),
    coalesce(sum(amount) FILTER (WHERE entries.kind = 'task_credit'), 0)
FROM accounts CROSS JOIN entries INDEXED BY entries_by_account ON account = accounts.number
CROSS JOIN transfers ON transfers.number = entries.number >> 3
WHERE accounts.kind = 'user' AND owner = :owner AND entries.number >= :first << 3
    AND entries.kind IN ('task_debit', 'task_credit')
GROUP BY day ORDER BY day;

-- name: transfer_number
SELECT number FROM transfers WHERE id = ?;

-- name: transfers
SELECT transfers.number, id, transfers.kind, at, task, reference, memo, hash, accounts.kind, owner,
    entries.kind, amount, entries.held, entries.account, entries.balance, reserved
FROM transfers CROSS JOIN entries
    ON entries.number BETWEEN transfers.number << 3 AND (transfers.number << 3) + 7
CROSS JOIN accounts ON accounts.number = entries.account
WHERE transfers.number BETWEEN ? AND ? ORDER BY entries.number;

-- name: page_end
SELECT max(number) FROM (SELECT number FROM transfers WHERE number > ? ORDER BY number LIMIT ?);

-- name: accounts
SELECT number, kind, owner, balance, held FROM accounts;

-- name: entry_count
SELECT count(*) FROM entries;

-- name: last_transfer
SELECT number, at, hash FROM transfers ORDER BY number DESC LIMIT 1;

-- name: add_transfer
INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_entries
INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: move
UPDATE accounts SET balance = balance + ?, held = held + ?
WHERE kind = ? AND owner = ? RETURNING number, balance, held;

-- name: reserve
-- Matches nothing where more is asked for than can be spent.
UPDATE accounts SET held = held + ?1
WHERE kind = 'user' AND owner = ?2 AND balance - held >= ?1
RETURNING number, balance, held;

-- name: available
SELECT balance - held FROM accounts WHERE kind = 'user' AND owner = ?;

-- name: open_account
INSERT INTO accounts (kind, owner, balance, held) VALUES ('user', ?, 0, 0);

-- name: put_order
INSERT INTO errands VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: set_order
-- First the columns of the order; then what it was when the change was decided on.
UPDATE errands SET agent = ?3, payee = ?5, skill = ?6, held = ?7, price = ?8, charged = ?9,
    fee = ?10, holds = ?11, due_at = ?13, ended_at = ?14, state = ?15, cause = ?16, moves = ?18,
    escrow = ?19, release_at = ?20, fee_due = ?21
WHERE task = ?1 AND agent = ?22 AND held = ?23 AND charged = ?24 AND holds = ?25
    AND ended_at = ?26 AND is_observed = ?27 AND escrow = ?28 AND release_at = ?29;

-- name: open_order
-- Nothing of a task that ends a second time.
SELECT * FROM errands WHERE task = ? AND ended_at = 0;

-- name: order
SELECT * FROM errands WHERE task = ?;

-- name: order_in
SELECT errands.* FROM tasks CROSS JOIN errands ON errands.task = tasks.number
WHERE tasks.id = ? AND tasks.scope = ?;

-- name: all_orders
SELECT * FROM errands ORDER BY task;

-- name: facts
SELECT errands.*, (SELECT group_concat(type) FROM trust_events
        WHERE trust_events.task = errands.task AND trust_events.task > 0),
    (SELECT rating FROM ratings WHERE ratings.task = errands.task),
    (SELECT outcome FROM disputes WHERE disputes.task = errands.task)
FROM errands WHERE task_id = ? ORDER BY task DESC;

-- name: due
SELECT errands.*, (SELECT group_concat(type) FROM trust_events
        WHERE trust_events.task = errands.task AND trust_events.task > 0),
    (SELECT rating FROM ratings WHERE ratings.task = errands.task),
    (SELECT outcome FROM disputes WHERE disputes.task = errands.task)
FROM errands INDEXED BY errands_delivered
WHERE escrow = 'delivered' AND release_at <= ? ORDER BY release_at LIMIT ?;

-- name: in_escrow
-- By the indexes of what is delivered and of what is disputed.
SELECT * FROM errands WHERE task IN (
    SELECT task FROM errands INDEXED BY errands_delivered
    WHERE escrow = 'delivered' AND :side IN (requester, payee)
    UNION ALL
    SELECT errands.task FROM disputes CROSS JOIN errands ON errands.task = disputes.task
    WHERE disputes.outcome = '' AND escrow = 'disputed' AND :side IN (errands.requester, payee))
    AND task < :after
ORDER BY task DESC LIMIT :limit;

-- name: in_escrow_total
SELECT (SELECT count(*) FROM errands INDEXED BY errands_delivered
    WHERE escrow = 'delivered' AND :side IN (requester, payee))
+ (SELECT count(*) FROM disputes CROSS JOIN errands ON errands.task = disputes.task
    WHERE disputes.outcome = '' AND escrow = 'disputed' AND :side IN (errands.requester, payee));

-- name: stale
-- Tasks that have ended, or that are gone, while their orders have not.
SELECT errands.*, tasks.state FROM errands INDEXED BY errands_open
LEFT JOIN tasks ON tasks.number = errands.task
WHERE ended_at = 0 AND (tasks.state IS NULL OR tasks.state IN (3, 4, 5, 7));

-- name: newest_from_the_end
-- Numbers rise, so the newest are at the end of the table: where a scope has many tasks, some are
-- found there soon.
SELECT errands.* FROM (
    SELECT number FROM tasks NOT INDEXED
    WHERE scope = :scope AND tasks.state IN (SELECT value FROM json_each(:states))
    ORDER BY number DESC LIMIT :limit OFFSET :offset) AS page
CROSS JOIN errands ON errands.task = page.number ORDER BY errands.task DESC;

-- name: newest_by_index
-- The tasks of a scope that has few are found by its index, and sorted.
SELECT errands.* FROM (
    SELECT number FROM tasks
    WHERE scope = :scope AND tasks.state IN (SELECT value FROM json_each(:states))
    ORDER BY number DESC LIMIT :limit OFFSET :offset) AS page
CROSS JOIN errands ON errands.task = page.number ORDER BY errands.task DESC;

-- name: orders_total
SELECT coalesce(sum(n), 0) FROM counts
WHERE scope = :scope AND state IN (SELECT value FROM json_each(:states));

-- name: orders_of_agent
SELECT errands.* FROM tasks CROSS JOIN errands ON errands.task = tasks.number
WHERE tasks.scope = :scope AND tasks.state IN (SELECT value FROM json_each(:states))
    AND (:agent = '' OR errands.agent = :agent)
    AND (:is_assigned IS NULL OR (errands.agent <> '') = :is_assigned)
ORDER BY tasks.number DESC LIMIT :limit OFFSET :offset;

-- name: orders_of_agent_total
SELECT count(*) FROM tasks CROSS JOIN errands ON errands.task = tasks.number
WHERE tasks.scope = :scope AND tasks.state IN (SELECT value FROM json_each(:states))
    AND (:agent = '' OR errands.agent = :agent)
    AND (:is_assigned IS NULL OR (errands.agent <> '') = :is_assigned);

-- name: put_checkout
INSERT INTO checkouts (id, owner, package, credits, cents, made_at, paid_at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: checkout
SELECT id, owner, package, credits, cents, made_at, paid_at FROM checkouts WHERE id = ?;

-- name: mark_paid
UPDATE checkouts SET paid_at = ? WHERE id = ? AND paid_at = 0;

-- name: record_payment
INSERT INTO payment_events VALUES (?, ?, ?);

-- name: payment
SELECT 1 FROM payment_events WHERE id = ?;
