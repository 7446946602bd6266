-- name: draw_limits
SELECT granted, remaining, living FROM draw_limits($1, $2, $3, $4, $5, $6, $7) ORDER BY place;

-- name: draw_seats
SELECT granted, remaining, living FROM draw_seats($1, $2, $3, $4, $5, $6, $7) ORDER BY place;

-- name: forget_limits
DELETE FROM limits WHERE full_at < extract(epoch FROM clock_timestamp());

-- name: forget_seats
DELETE FROM seats WHERE worker NOT IN (SELECT number FROM workers WHERE gone_at IS NULL);
