-- What a task means to those who keep books: who asked, who does it, what it costs. The row outlives
-- the task. Amounts are micro-credits, times milliseconds.
CREATE TABLE errands (
    task      INTEGER PRIMARY KEY, -- its number, which is never given twice
    task_id   TEXT NOT NULL, -- of its scope: another scope may have the same
    agent     TEXT NOT NULL,
    requester TEXT NOT NULL,
    payee     TEXT NOT NULL,
    skill     TEXT NOT NULL,
    held      INTEGER NOT NULL, -- reserved at present
    price     INTEGER NOT NULL, -- as agreed; taken if it is completed
    charged   INTEGER NOT NULL DEFAULT 0, -- what was taken, and the part of it that is the fee
    fee       INTEGER NOT NULL DEFAULT 0,
    holds     INTEGER NOT NULL DEFAULT 0, -- how often the hold was made or changed
    began_at  INTEGER NOT NULL,
    due_at    INTEGER NOT NULL, -- 0: whenever
    ended_at  INTEGER NOT NULL DEFAULT 0, -- 0: it has not
    state     TEXT NOT NULL DEFAULT '', -- as the protocol calls it, once it has ended
    cause     TEXT NOT NULL
) STRICT;
CREATE INDEX errands_by_id ON errands (task_id);
CREATE INDEX errands_open ON errands (task) WHERE ended_at = 0;

-- Who has how much. What was issued and what was sold are the other side of what users got, so all
-- balances together are zero.
CREATE TABLE accounts (
    number  INTEGER PRIMARY KEY,
    kind    TEXT NOT NULL, -- user, fees, issued, sold
    owner   TEXT NOT NULL, -- empty: the local user, and for the other kinds
    balance INTEGER NOT NULL,
    held    INTEGER NOT NULL, -- of the balance: reserved for tasks that have not ended
    UNIQUE (kind, owner),
    CHECK (held >= 0),
    CHECK (balance >= held OR kind IN ('issued', 'sold'))
) STRICT;
INSERT INTO accounts VALUES (1, 'issued', '', 0, 0), (2, 'sold', '', 0, 0), (3, 'fees', '', 0, 0);

-- What happened, once: the id is a hash of what it is for, so a repetition is the same transfer.
-- Each has a hash of the one before, of itself and of its entries.
CREATE TABLE transfers (
    number    INTEGER PRIMARY KEY,
    id        BLOB NOT NULL,
    kind      TEXT NOT NULL, -- grant, hold, capture, release, purchase, refund
    task      INTEGER NOT NULL, -- 0: none
    reference TEXT NOT NULL, -- a task's id, or that of a payment
    memo      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    hash      BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX transfers_by_id ON transfers (id);

-- What a transfer did to accounts. The amounts of one transfer are zero together.
CREATE TABLE entries (
    number   INTEGER PRIMARY KEY, -- transfer << 3 | place
    account  INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    amount   INTEGER NOT NULL, -- change of the balance
    held     INTEGER NOT NULL, -- change of what is reserved
    balance  INTEGER NOT NULL, -- afterwards
    reserved INTEGER NOT NULL
) STRICT;
CREATE INDEX entries_by_account ON entries (account, number);

CREATE TRIGGER transfers_stay BEFORE UPDATE ON transfers BEGIN SELECT RAISE(ABORT, 'transfers are final'); END;
CREATE TRIGGER transfers_last BEFORE DELETE ON transfers BEGIN SELECT RAISE(ABORT, 'transfers are final'); END;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are final'); END;
CREATE TRIGGER entries_last BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are final'); END;

-- Purchases that were begun, and whether they were paid.
CREATE TABLE checkouts (
    id      TEXT PRIMARY KEY,
    owner   TEXT NOT NULL,
    package TEXT NOT NULL,
    credits INTEGER NOT NULL,
    cents   INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    paid_at INTEGER NOT NULL DEFAULT 0 -- 0: not yet
) STRICT, WITHOUT ROWID;

-- What a payment provider told us, so that its repetition does nothing.
CREATE TABLE payment_events (
    id       TEXT PRIMARY KEY,
    checkout TEXT NOT NULL,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
