-- Each write of a run touches fewer pages: indexes grow at their end, what is looked for is found through the runs
-- that are not sealed, and events lie one after another.

DROP INDEX runs_newest;
DROP INDEX runs_of_tenant;
DROP INDEX runs_not_over;
DROP INDEX runs_not_sealed;
CREATE INDEX runs_newest ON runs (accepted_ms, run);
CREATE INDEX runs_of_tenant ON runs (tenant, accepted_ms, run);
-- By a column that changes once, so that no other change of a run touches it.
CREATE INDEX runs_not_sealed ON runs (accepted_ms, run) WHERE sealed_ms IS NULL;

-- A lease that is not closed is of a run that is not sealed.
CREATE TABLE leases_anew (
    lease TEXT NOT NULL PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    worker TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sandbox TEXT,
    expires_ms INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'revoked', 'closed'))
) STRICT, WITHOUT ROWID;
INSERT INTO leases_anew (lease, run, worker, epoch, sandbox, expires_ms, state)
    SELECT lease, run, worker, epoch, sandbox, expires_ms, state FROM leases;
DROP TABLE leases;
ALTER TABLE leases_anew RENAME TO leases;
CREATE INDEX leases_of_run ON leases (run);
CREATE TRIGGER one_active_lease BEFORE INSERT ON leases
    WHEN EXISTS (SELECT 1 FROM leases WHERE run = NEW.run AND state = 'active')
    BEGIN SELECT RAISE(ABORT, 'a run has one active lease'); END;
CREATE TRIGGER leases_end BEFORE UPDATE OF state ON leases WHEN NEW.state = 'active' AND OLD.state <> 'active'
    BEGIN SELECT RAISE(ABORT, 'a lease that ended is never active again'); END;

-- An event's id is 1,048,576 times that of its run, and its place in the chain, which is less than that.
CREATE TABLE events_anew (
    id INTEGER PRIMARY KEY,
    event BLOB NOT NULL
) STRICT;
INSERT INTO events_anew (id, event) SELECT run * 1048576 + seq, event FROM events ORDER BY run, seq;
DROP TABLE events;
ALTER TABLE events_anew RENAME TO events;
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'an event never changes'); END;
CREATE TRIGGER events_go AFTER DELETE ON runs
    BEGIN DELETE FROM events WHERE id >= OLD.id * 1048576 AND id < (OLD.id + 1) * 1048576; END;

-- What the operator says of a tenant has a scope of its own since. A document of the operator's own tenant stood in
-- the place of the built-in one; so that this one does not hold again, it is the operator's word from here on.
INSERT INTO policies (scope, version, document, digest, published_ms)
    SELECT 'platform/' || scope, 1, document, digest, published_ms FROM policies
    WHERE scope = 'tenant/default'
    AND NOT EXISTS (SELECT 1 FROM policies WHERE scope = 'platform/tenant/default')
    ORDER BY version DESC LIMIT 1;
