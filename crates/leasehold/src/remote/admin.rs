//! `leasehold tool`, `tenant`, `key` and `policy` against a daemon.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_core::quantity::{format_micros, parse_duration};
use leasehold_supervisor::paths::Paths;
use serde_json::{Value, json};

use super::{Remote, read_text, text};
use crate::cli::daemon::{KeyCommand, PolicyCommand, TenantCommand, ToolCommand};
use crate::fault::Fault;
use crate::show::when;
use crate::voice::{self, clean};
use crate::{place, table};

fn daemon() -> Result<(Paths, Remote), Fault> {
    let paths = place::paths()?;
    let remote = Remote::need(&paths)?;
    Ok((paths, remote))
}

fn told(value: &Value, as_json: bool, table: impl FnOnce(&Value) -> String) -> Result<u8, Fault> {
    match as_json {
        true => voice::json(value)?,
        false => voice::data(table(value).as_bytes())?,
    }
    Ok(0)
}

/// Puts the name that was typed before what the daemon said of it.
fn about(name: &str) -> impl FnOnce(Fault) -> Fault {
    let name = format!("`{}`", clean(name));
    move |fault| fault.about(name)
}

fn rows<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    value[list].as_array().into_iter().flatten()
}

fn warn(value: &Value) {
    for warning in rows(value, "warnings").filter_map(Value::as_str) {
        voice::note(&format!("warning: {}", clean(warning)));
    }
}

/// `leasehold tool`, but for `check`, which needs no daemon.
///
/// # Errors
/// As the daemon says.
pub(crate) fn tool(command: &ToolCommand) -> Result<u8, Fault> {
    match command {
        ToolCommand::Check { path, json } => crate::tool::check(path, *json),
        ToolCommand::Publish { path, json } => publish(path, *json),
        ToolCommand::Ls { json } => {
            let list: Value = daemon()?.1.get("/v1/tools")?;
            told(&list, *json, tools)
        }
        ToolCommand::Show { tool, json } => {
            let path = format!("/v1/tools/{}", tool_path(tool)?);
            let shown = daemon()?.1.get(&path).map_err(about(tool))?;
            match tool.contains('@') || *json {
                true => voice::json(&shown).map(|()| 0),
                false => told(&shown, false, tools),
            }
        }
        ToolCommand::Deprecate(flags) => set_state(&flags.tool, "deprecated", &flags.why),
        ToolCommand::Quarantine(flags) => set_state(&flags.tool, "quarantined", &flags.why),
        ToolCommand::Activate(flags) => set_state(&flags.tool, "active", &flags.why),
    }
}

/// Publishes a tool, and waits for the compiler where it has a module.
fn publish(path: &Path, as_json: bool) -> Result<u8, Fault> {
    let Some(request) = crate::tool::publish_request(path)? else {
        return Ok(2);
    };
    let (_, remote) = daemon()?;
    let mut made: Value = remote.send("POST", "/v1/tools", &request)?;
    warn(&made);
    if made["code"]["state"] == "compiling" {
        made["code"] = compiled(&remote, &made)?;
    }
    told(&made, as_json, |made| {
        let code = match made["code"]["state"].as_str() {
            Some("compiled") => ", compiled",
            Some("compiling") => ", still compiling",
            Some("none") => ", not compiled yet: its first run waits for that",
            _ => "",
        };
        format!(
            "published {} ({}){code}\n",
            text(&made["tool"]),
            text(&made["digest"])
        )
    })?;
    match made["code"]["why"].as_str() {
        Some(why) => Err(Fault::usage(format!(
            "{} is published and cannot be run: {}",
            text(&made["tool"]),
            clean(why)
        ))),
        None => Ok(0),
    }
}

/// How often a compiler is looked at, and how long: its own bounds are below that.
const LOOK: Duration = Duration::from_millis(500);
const COMPILE_MAX: Duration = Duration::from_secs(900);

/// Waits until a version of a tool is compiled, or is known not to be; gives where it stands.
fn compiled(remote: &Remote, made: &Value) -> Result<Value, Fault> {
    let begun = Instant::now();
    let tool = made["tool"].as_str().unwrap_or_default();
    let path = format!("/v1/tools/{}", tool_path(tool)?);
    voice::note("compiles it, so that no run waits for that; end this command and it goes on");
    loop {
        std::thread::sleep(LOOK);
        let mut seen: Value = remote.get(&path)?;
        let code = seen["code"].take();
        if code["state"] != "compiling" || begun.elapsed() > COMPILE_MAX {
            if code["state"] == "compiled" {
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                voice::note(&format!("compiled it in {}", format_micros(micros)));
            }
            return Ok(code);
        }
    }
}

/// A tool's place in the address; what could mean another place is refused here.
fn tool_path(tool: &str) -> Result<String, Fault> {
    let plain = tool
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'@'));
    match plain && !tool.is_empty() {
        true => Ok(tool.replacen('@', "/", 1)),
        false => Err(Fault::usage(format!(
            "`{}` is no tool: NAME or NAME@VERSION",
            clean(tool)
        ))),
    }
}

fn tools(list: &Value) -> String {
    let rows = rows(list, "tools").map(|tool| {
        let manifest = &tool["manifest"];
        [
            text(&tool["tool"]),
            text(&tool["state"]),
            text(&manifest["category"]),
            table::short(&text(&manifest["description"]), 60),
        ]
    });
    table::lines(["TOOL", "STATE", "CATEGORY", "DESCRIPTION"], rows.collect())
}

fn set_state(tool: &str, state: &str, why: &Option<String>) -> Result<u8, Fault> {
    if !tool.contains('@') {
        return Err(Fault::usage(format!("`{}` names no version", clean(tool)))
            .hint("write it as NAME@VERSION; `leasehold tool ls` lists them"));
    }
    let path = format!("/v1/tools/{}/state", tool_path(tool)?);
    let body = json!({ "state": state, "note": why });
    let changed = daemon()?.1.send("PUT", &path, &body);
    let changed: Value = changed.map_err(about(tool))?;
    told(&changed, false, |changed| {
        format!(
            "{} is {}\n",
            text(&changed["tool"]),
            text(&changed["state"])
        )
    })
}

/// `leasehold tenant`.
///
/// # Errors
/// As the daemon says.
pub(crate) fn tenant(command: &TenantCommand) -> Result<u8, Fault> {
    let (_, remote) = daemon()?;
    let suspend = |name: &str, suspended: bool| -> Result<u8, Fault> {
        let path = format!("/v1/tenants/{}/suspended", tool_path(name)?);
        let body = json!({ "suspended": suspended });
        let tenant = remote.send("PUT", &path, &body);
        let tenant: Value = tenant.map_err(about(name))?;
        told(&tenant, false, |tenant| {
            let state = if suspended { "suspended" } else { "active" };
            format!("{} is {state}\n", text(&tenant["name"]))
        })
    };
    match command {
        TenantCommand::Create { name } => {
            let made = remote.send("POST", "/v1/tenants", &json!({ "name": name }));
            let made: Value = made.map_err(about(name))?;
            told(&made, false, |made| {
                format!("made tenant {}\n", text(&made["name"]))
            })
        }
        TenantCommand::Ls { json } => {
            let list: Value = remote.get("/v1/tenants")?;
            told(&list, *json, |list| {
                let rows = rows(list, "tenants").map(|tenant| {
                    let state = match tenant["suspended"].as_bool() {
                        Some(true) => "suspended",
                        _ => "active",
                    };
                    let made = tenant["created_unix_ms"]
                        .as_u64()
                        .map_or_else(String::new, when);
                    [text(&tenant["name"]), state.to_owned(), made]
                });
                table::lines(["TENANT", "STATE", "MADE"], rows.collect())
            })
        }
        TenantCommand::Suspend { name } => suspend(name, true),
        TenantCommand::Resume { name } => suspend(name, false),
    }
}

/// `leasehold key`.
///
/// # Errors
/// As the daemon says.
pub(crate) fn key(command: &KeyCommand) -> Result<u8, Fault> {
    let (_, remote) = daemon()?;
    match command {
        KeyCommand::Create {
            principal,
            role,
            tenant,
            project,
            grants,
            ttl,
        } => {
            let ttl_ms = ttl.as_deref().map(parse_duration).transpose();
            let ttl_ms = ttl_ms
                .map_err(|error| Fault::usage(format!("`--ttl`: {error}")))?
                .map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            let body = json!({
                "principal": principal, "role": role, "tenant": tenant,
                "project": project, "grants": grants, "ttl_ms": ttl_ms,
            });
            let made: Value = remote.send("POST", "/v1/keys", &body)?;
            voice::note(&format!(
                "made key {}; its token is told this once",
                text(&made["key"]["key"])
            ));
            told(&made, false, |made| format!("{}\n", text(&made["token"])))
        }
        KeyCommand::Ls { tenant, json } => {
            let query = match tenant {
                Some(tenant) => format!("?tenant={}", tool_path(tenant)?),
                None => String::new(),
            };
            let list: Value = remote.get(&format!("/v1/keys{query}"))?;
            told(&list, *json, keys)
        }
        KeyCommand::Revoke { key } => {
            let path = format!("/v1/keys/{}", tool_path(key)?);
            let gone = remote.send("DELETE", &path, &Value::Null);
            let gone: Value = gone.map_err(about(key))?;
            told(&gone, false, |gone| {
                format!("revoked {}\n", text(&gone["key"]))
            })
        }
    }
}

fn keys(list: &Value) -> String {
    let rows = rows(list, "keys").map(|key| {
        let state = match (
            key["revoked_unix_ms"].as_u64(),
            key["expires_unix_ms"].as_u64(),
        ) {
            (Some(at), _) => format!("revoked {}", when(at)),
            (None, Some(at)) => format!("until {}", when(at)),
            (None, None) => "active".to_owned(),
        };
        let whose = format!("{}/{}", text(&key["tenant"]), text(&key["project"]));
        [
            text(&key["key"]),
            whose,
            text(&key["principal"]),
            text(&key["role"]),
            state,
        ]
    });
    table::lines(
        ["KEY", "TENANT", "PRINCIPAL", "ROLE", "STATE"],
        rows.collect(),
    )
}

/// `leasehold policy`, but for `check`, which needs no daemon.
///
/// # Errors
/// As the daemon says.
pub(crate) fn policy(command: &PolicyCommand) -> Result<u8, Fault> {
    match command {
        PolicyCommand::Check { path, scope } => crate::policy::check(path, scope),
        PolicyCommand::Show { scope: None, json } => {
            let list: Value = daemon()?.1.get("/v1/policies")?;
            told(&list, *json, |list| {
                let rows = rows(list, "policies").map(|policy| {
                    let version = match policy["version"].as_u64() {
                        Some(0) => "built in".to_owned(),
                        _ => text(&policy["version"]),
                    };
                    [text(&policy["scope"]), version, text(&policy["digest"])]
                });
                table::lines(["SCOPE", "VERSION", "DIGEST"], rows.collect())
            })
        }
        PolicyCommand::Show {
            scope: Some(scope), ..
        } => {
            let list: Value = daemon()?
                .1
                .get(&format!("/v1/policies?scope={}", scope_query(scope)?))?;
            voice::json(&list["policies"][0]).map(|()| 0)
        }
        PolicyCommand::Set { scope, path } => {
            let document = read_text(path)?;
            let body = json!({ "scope": scope, "document": document });
            let set: Value = daemon()?.1.send("PUT", "/v1/policies", &body)?;
            told(&set, false, |set| {
                format!(
                    "version {} of {} is in force\n",
                    text(&set["version"]),
                    text(&set["scope"])
                )
            })
        }
        PolicyCommand::Explain {
            tool,
            tenant,
            project,
            principal,
            json,
        } => {
            if let Some(tool) = tool {
                tool_path(tool)?;
            }
            // Names need no escapes.
            let named = [
                ("tool", tool.clone()),
                ("tenant", tenant.as_ref().map(ToString::to_string)),
                ("project", project.as_ref().map(ToString::to_string)),
                ("principal", principal.as_ref().map(ToString::to_string)),
            ];
            let named = named
                .into_iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", value?)));
            let query = named.collect::<Vec<_>>().join("&");
            let explained: Value = daemon()?
                .1
                .get(&format!("/v1/policies/effective?{query}"))?;
            told(&explained, *json, effective)
        }
    }
}

fn scope_query(scope: &str) -> Result<String, Fault> {
    let plain = scope
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'/'));
    match plain {
        true => Ok(scope.to_owned()),
        false => Err(Fault::usage(format!("`{}` is no scope", clean(scope)))
            .hint("such as platform/tenant/acme, tenant/acme or tenant/acme/project/web")),
    }
}

fn rows_of(list: &Value) -> String {
    let texts = list.as_array().into_iter().flatten().map(text);
    texts.collect::<Vec<_>>().join(", ")
}

/// What the policies come to: one line for each value, and who set it.
fn effective(explained: &Value) -> String {
    let rows = rows(explained, "values").map(|value| {
        let shown = match &value["value"] {
            Value::String(text) => clean(text),
            other => clean(&other.to_string()),
        };
        let by = rows_of(&value["set_by"]);
        [text(&value["field"]), shown, by]
    });
    table::lines(["FIELD", "VALUE", "SET BY"], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_typed_becomes_another_address() {
        assert_eq!(tool_path("a.b@1.2.3").unwrap(), "a.b/1.2.3");
        for bad in ["", "../x", "a b", "a?x", "a/b", "a%2f"] {
            assert!(tool_path(bad).is_err(), "{bad}");
        }
        assert!(scope_query("tenant/a?x=1").is_err());
    }
}
