-- Tenants, runs and their chains, leases, tools, policies, keys.
-- Digests are kept as `sha256:…`, times as milliseconds since 1970, canonical JSON as the bytes that were hashed.

CREATE TABLE tenants (
    name TEXT NOT NULL PRIMARY KEY,
    row TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One log for each tenant; the newest entry is its head.
CREATE TABLE log (
    tenant TEXT NOT NULL REFERENCES tenants (name),
    seq INTEGER NOT NULL,
    digest TEXT NOT NULL,
    entry BLOB NOT NULL,
    PRIMARY KEY (tenant, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE signed_heads (
    tenant TEXT NOT NULL PRIMARY KEY REFERENCES tenants (name),
    count INTEGER NOT NULL,
    digest TEXT NOT NULL,
    envelope TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL REFERENCES tenants (name),
    project TEXT NOT NULL,
    principal TEXT NOT NULL,
    tool TEXT,
    tool_version TEXT,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'ended', 'sealed')),
    epoch INTEGER NOT NULL,
    sandbox TEXT,
    contract_digest TEXT NOT NULL,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    outcome TEXT,
    head_count INTEGER NOT NULL,
    head_digest TEXT NOT NULL,
    accepted_ms INTEGER NOT NULL,
    opened_seq INTEGER NOT NULL,
    sealed_seq INTEGER,
    sealed_ms INTEGER,
    retain_ms INTEGER NOT NULL,
    CHECK ((outcome IS NOT NULL) = (state IN ('ended', 'sealed'))),
    CHECK ((sealed_ms IS NOT NULL) = (state = 'sealed')),
    CHECK ((sealed_seq IS NOT NULL) = (state = 'sealed'))
) STRICT;

CREATE INDEX runs_newest ON runs (accepted_ms DESC, run DESC);
CREATE INDEX runs_of_tenant ON runs (tenant, accepted_ms DESC, run DESC);
CREATE INDEX runs_not_over ON runs (state, accepted_ms DESC, run DESC) WHERE state <> 'sealed';
CREATE INDEX runs_to_prune ON runs (sealed_ms) WHERE sealed_ms IS NOT NULL;

CREATE TABLE contracts (
    run INTEGER PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    contract BLOB NOT NULL
) STRICT;

CREATE TABLE sealed_requests (
    run INTEGER PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    request BLOB NOT NULL
) STRICT;

CREATE TABLE idempotency (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    request TEXT NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_of_run ON idempotency (run);

CREATE TABLE events (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    event BLOB NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    lease TEXT NOT NULL PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    worker TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sandbox TEXT,
    expires_ms INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'revoked', 'closed'))
) STRICT;

CREATE INDEX leases_of_run ON leases (run);
CREATE UNIQUE INDEX one_active_lease ON leases (run) WHERE state = 'active';
CREATE INDEX leases_open ON leases (lease) WHERE state <> 'closed';

CREATE TABLE seals (
    run INTEGER PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    statement TEXT NOT NULL,
    observed TEXT NOT NULL,
    clean INTEGER NOT NULL
) STRICT;

CREATE INDEX seals_not_clean ON seals (run DESC) WHERE clean = 0;

CREATE TABLE keys (
    key TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (name),
    secret TEXT NOT NULL,
    project TEXT NOT NULL,
    principal TEXT NOT NULL,
    role TEXT NOT NULL,
    grants TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER
) STRICT;

CREATE INDEX keys_of_tenant ON keys (tenant, created_ms DESC);

CREATE TABLE tools (
    tenant TEXT NOT NULL REFERENCES tenants (name),
    tool TEXT NOT NULL,
    version TEXT NOT NULL,
    manifest BLOB NOT NULL,
    digest TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'deprecated', 'quarantined')),
    note TEXT,
    published_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, tool, version)
) STRICT;

CREATE TABLE policies (
    scope TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    document BLOB NOT NULL,
    digest TEXT NOT NULL,
    published_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, version)
) STRICT;

CREATE TABLE cache (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX cache_of_run ON cache (run);

CREATE TABLE workers (
    worker TEXT NOT NULL PRIMARY KEY,
    capabilities TEXT NOT NULL,
    seen_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What is written once stays: a second lock beside the code, for whoever opens the database by hand.
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'an event never changes'); END;
CREATE TRIGGER log_stays BEFORE UPDATE ON log BEGIN SELECT RAISE(ABORT, 'an entry never changes'); END;
CREATE TRIGGER log_is_kept BEFORE DELETE ON log BEGIN SELECT RAISE(ABORT, 'an entry is never removed'); END;
CREATE TRIGGER contracts_stay BEFORE UPDATE ON contracts BEGIN SELECT RAISE(ABORT, 'a contract never changes'); END;
CREATE TRIGGER policies_stay BEFORE UPDATE ON policies BEGIN SELECT RAISE(ABORT, 'a policy never changes'); END;
CREATE TRIGGER tools_stay BEFORE UPDATE OF tenant, tool, version, manifest, digest, published_ms ON tools
    BEGIN SELECT RAISE(ABORT, 'a published tool never changes'); END;
CREATE TRIGGER outcome_stays BEFORE UPDATE OF outcome ON runs WHEN OLD.outcome IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'a result is fixed once'); END;
