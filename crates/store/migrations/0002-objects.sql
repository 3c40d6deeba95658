-- Which objects are named, by whom and until when; what a tenant uploaded; runs that are not sealed, oldest first.

CREATE TABLE uploads (
    tenant TEXT NOT NULL REFERENCES tenants (name),
    digest TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX uploads_of_digest ON uploads (digest);
CREATE INDEX uploads_oldest ON uploads (at_ms);

-- No time means: until the run ends (content), or as long as its record is kept.
CREATE TABLE names (
    digest TEXT NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('content', 'log', 'artifact')),
    until_ms INTEGER,
    PRIMARY KEY (digest, run, kind)
) STRICT, WITHOUT ROWID;

CREATE INDEX names_of_run ON names (run);
CREATE INDEX names_over ON names (until_ms) WHERE until_ms IS NOT NULL;

CREATE INDEX tools_of_package ON tools (
    CASE WHEN json_valid(CAST(manifest AS TEXT)) THEN json_extract(CAST(manifest AS TEXT), '$.package') END
);
CREATE INDEX runs_not_sealed ON runs (accepted_ms, run) WHERE state <> 'sealed';

-- What earlier rows name.
INSERT INTO names (digest, run, kind, until_ms)
SELECT DISTINCT found.digest, found.run, found.kind, json_extract(found.outcome, '$.ended_unix_ms')
    + 1000 * json_extract(CAST(c.contract AS TEXT), '$.retention.' || CASE found.kind WHEN 'log' THEN 'logs_s' ELSE 'artifacts_s' END)
FROM (
    SELECT json_extract(outcome, '$.stdout.digest') AS digest, id AS run, 'log' AS kind, outcome FROM runs
    UNION SELECT json_extract(outcome, '$.stderr.digest'), id, 'log', outcome FROM runs
    UNION SELECT 'sha256:' || json_extract(file.value, '$.sha256'), r.id, 'artifact', r.outcome
        FROM runs r, json_each(r.outcome, '$.artifacts') file
) found JOIN contracts c ON c.run = found.run
WHERE found.digest IS NOT NULL;

INSERT INTO names (digest, run, kind)
SELECT json_extract(CAST(c.contract AS TEXT), '$.workspace.content'), r.id, 'content'
FROM runs r JOIN contracts c ON c.run = r.id
WHERE r.outcome IS NULL AND json_extract(CAST(c.contract AS TEXT), '$.workspace.content') IS NOT NULL;
