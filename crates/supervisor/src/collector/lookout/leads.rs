//! Where git looks beyond its usual places: the hooks directory and the files that a repository's
//! configuration names. Reads text of a hostile tree and gives paths below the workspace; pure.

/// A place that is obeyed because something else says so, relative to the workspace.
pub(super) type Lead = Vec<u8>;

/// Most leads taken from one file.
const LEADS_MAX: usize = 16;

/// Places that a git configuration at `path` makes obeyed. What lies outside of the workspace, as far
/// as the text tells (an absolute path, the home directory), is not the workload's to change.
pub(super) fn of_git_config(path: &[u8], text: &[u8]) -> Vec<Lead> {
    let own = parent(path);
    let mut hooks = Vec::new();
    let mut includes = Vec::new();
    let mut tree = own.rsplit(|byte| *byte == b'/').next().map(|last| {
        if last.eq_ignore_ascii_case(b".git") {
            parent(own).to_vec()
        } else {
            own.to_vec()
        }
    });
    let mut including = false;
    for line in text.split(|byte| *byte == b'\n') {
        let mut line = line.trim_ascii();
        if let [b'[', rest @ ..] = line {
            let end = rest.iter().position(|byte| *byte == b']');
            let (header, rest) = rest.split_at(end.unwrap_or(rest.len()));
            including = header
                .get(..7)
                .is_some_and(|head| head.eq_ignore_ascii_case(b"include"));
            line = rest.get(1..).unwrap_or_default().trim_ascii();
        }
        let Some(at) = line.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let (key, value) = (line[..at].trim_ascii(), value(&line[at + 1..]));
        if key.eq_ignore_ascii_case(b"hookspath") {
            hooks.push(value);
        } else if key.eq_ignore_ascii_case(b"worktree") {
            tree = join(own, &value);
        } else if including && key.eq_ignore_ascii_case(b"path") {
            includes.push(value);
        }
    }
    let hooks = hooks
        .iter()
        .filter_map(|value| join(tree.as_deref()?, value));
    let includes = includes.iter().filter_map(|value| join(own, value));
    hooks.chain(includes).take(LEADS_MAX).collect()
}

/// A value without its quotes and what follows it.
fn value(text: &[u8]) -> Vec<u8> {
    let text = text.trim_ascii();
    match text {
        [b'"', rest @ ..] => rest
            .iter()
            .copied()
            .take_while(|byte| *byte != b'"')
            .collect(),
        _ => text
            .split(|byte| matches!(byte, b';' | b'#'))
            .next()
            .unwrap_or_default()
            .trim_ascii()
            .to_vec(),
    }
}

fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/');
    &path[..end.unwrap_or(0)]
}

/// A relative path below a directory of the workspace, without `.` and `..`; `None` when it is
/// absolute, of the home directory, empty, or leads out.
fn join(base: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    if value.is_empty() || matches!(value[0], b'/' | b'~') || value.contains(&0) {
        return None;
    }
    let mut names: Vec<&[u8]> = Vec::new();
    let parts = base.split(|byte| *byte == b'/');
    for name in parts.chain(value.split(|byte| *byte == b'/')) {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(names.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_a_configuration_names_are_found() {
        let leads = |path: &str, text: &str| -> Vec<String> {
            of_git_config(path.as_bytes(), text.as_bytes())
                .into_iter()
                .map(|lead| String::from_utf8(lead).unwrap())
                .collect()
        };
        let hooks = "[core]\n\tbare = false\n\thooksPath = .githooks # ours\n";
        assert_eq!(leads(".git/config", hooks), [".githooks"]);
        assert_eq!(leads("sub/.git/config", hooks), ["sub/.githooks"]);
        assert_eq!(leads("bare/config", hooks), ["bare/.githooks"]);
        let module = "[core]\n worktree = ../../../lib/x\n HooksPath=\"../tools/hooks\"\n";
        assert_eq!(leads(".git/modules/x/config", module), ["lib/tools/hooks"]);
        let include =
            "[include] path = ../shared.inc\n[includeIf \"x\"]\npath=other\n[a]\npath=no\n";
        assert_eq!(leads(".git/config", include), ["shared.inc", ".git/other"]);
        for outside in ["/etc/hooks", "~/hooks", "../../up", "", "\"\""] {
            let text = format!("[core]\nhooksPath = {outside}\n");
            assert!(leads(".git/config", &text).is_empty(), "{outside}");
        }
    }

    #[test]
    fn a_hostile_configuration_gives_a_bounded_list() {
        let text = "[core]\nhooksPath=a\n".repeat(10_000);
        assert_eq!(
            of_git_config(b".git/config", text.as_bytes()).len(),
            LEADS_MAX
        );
        assert!(of_git_config(b"config", b"[\n=\n[include\npath\n]=").is_empty());
    }
}
