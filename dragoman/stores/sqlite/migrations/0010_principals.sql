-- Who somebody is has two parts, the tenant and the owner. In columns it is one text: the owner, or
-- `@tenant/owner`. What was recorded before counts as without a tenant: it did not say which.
UPDATE agents SET body = CAST(
    json_set(
        CAST(body AS TEXT), '$.owner',
        json_object('tenant', '', 'owner', coalesce(CAST(body AS TEXT) ->> 'owner', ''))
    ) AS BLOB
);
