-- Duties that one worker at a time has: leadership ends with the life of its worker, so there is no
-- second lease that could end at another time.
CREATE TABLE duties (
    name   text PRIMARY KEY,
    worker int NOT NULL
);

-- Gives a duty to a worker unless another that lives has it. Does not wait for a deed under way.
CREATE FUNCTION take_duty(me int, duty text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM workers WHERE number = me AND gone_at IS NULL) THEN
        RETURN false;
    END IF;
    INSERT INTO duties VALUES (duty, me) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM duties WHERE name = duty AND (worker = me
        OR worker NOT IN (SELECT number FROM workers WHERE gone_at IS NULL)) FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE duties SET worker = me WHERE name = duty AND worker <> me;
    RETURN true;
END $$;

-- Whether a worker has a duty; asked in the transaction of the deed, which it fences: no other
-- worker gets the duty before that transaction ends. One whose client was frozen in the midst of it ends
-- by itself, so that the duty does not stay with it.
CREATE FUNCTION holds_duty(me int, duty text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
    PERFORM 1 FROM duties WHERE name = duty AND worker = me
        AND EXISTS (SELECT 1 FROM workers WHERE number = me AND gone_at IS NULL) FOR SHARE;
    RETURN FOUND;
END $$;
