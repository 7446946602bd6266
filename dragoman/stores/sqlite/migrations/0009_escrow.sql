-- The price of a task that was completed may stay reserved for a time in which whoever asked can
-- accept or dispute it.
ALTER TABLE errands ADD COLUMN escrow TEXT NOT NULL DEFAULT ''; -- funded, delivered, disputed, released, resolved, refunded; empty: no escrow
ALTER TABLE errands ADD COLUMN release_at INTEGER NOT NULL DEFAULT 0; -- when what is delivered is paid
ALTER TABLE errands ADD COLUMN fee_due INTEGER NOT NULL DEFAULT 0; -- the part of the price that is the fee, as of the delivery
CREATE INDEX errands_delivered ON errands (release_at) WHERE escrow = 'delivered';
