//! Names that a program of the host runs or obeys by itself: hooks, repository settings, shell start
//! files, editor and agent settings, settings of package managers, jobs of build servers.
//!
//! Not on the list is what somebody must start by name (`Makefile`, scripts of `package.json`,
//! `build.rs`), and what a listed file calls in turn. Letter case is ignored, as some file systems do.

/// Files in directories of these names, at any depth, are obeyed.
const OBEYED_IN: [&str; 19] = [
    ".vscode",
    ".idea",
    ".devcontainer",
    ".husky",
    ".direnv",
    ".cursor",
    ".claude",
    ".codex",
    ".gemini",
    ".windsurf",
    ".continue",
    ".zed",
    ".fleet",
    ".emacs.d",
    ".ipython",
    ".mvn",
    ".circleci",
    ".buildkite",
    ".woodpecker",
];
/// In directories of these names those of [`CI_PARTS`] are obeyed.
const CI: [&str; 4] = [".github", ".gitea", ".forgejo", ".gitlab"];
/// Parts of [`CI`].
const CI_PARTS: [&str; 3] = ["workflows", "actions", "ci"];
/// Files of these names, at any depth, are obeyed.
const OBEYED: [&str; 79] = [
    ".envrc",
    ".gitmodules",
    ".gitattributes",
    ".gitconfig",
    ".pre-commit-config.yaml",
    ".overcommit.yml",
    "lefthook.yml",
    ".lefthook.yml",
    "lefthook-local.yml",
    ".mcp.json",
    ".mise.toml",
    "mise.toml",
    ".mise.local.toml",
    "mise.local.toml",
    ".tool-versions",
    ".python-version",
    ".ruby-version",
    ".node-version",
    ".nvmrc",
    ".java-version",
    ".sdkmanrc",
    "rust-toolchain",
    "rust-toolchain.toml",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    "bunfig.toml",
    "pip.conf",
    ".pydistutils.cfg",
    ".bazelrc",
    ".gitlab-ci.yml",
    ".travis.yml",
    ".drone.yml",
    ".cirrus.yml",
    ".appveyor.yml",
    "appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "jenkinsfile",
    ".vimrc",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".lvimrc",
    ".dir-locals.el",
    ".gdbinit",
    ".lldbinit",
    ".pdbrc",
    ".irbrc",
    ".pryrc",
    ".rprofile",
    ".ghci",
    ".ocamlinit",
    ".psqlrc",
    ".inputrc",
    ".tmux.conf",
    ".screenrc",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".logout",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".pam_environment",
];
/// Endings of paths that are, where the last name alone says too little.
const OBEYED_TAILS: [&[&str]; 9] = [
    &[".config", "fish", "config.fish"],
    &[".cargo", "config"],
    &[".cargo", "config.toml"],
    &[".config", "git", "config"],
    &[".config", "git", "attributes"],
    &[".config", "direnv", "direnvrc"],
    &[".config", "mise", "config.toml"],
    &[".ssh", "config"],
    &[".ssh", "authorized_keys"],
];
/// Endings of names that are.
const OBEYED_ENDINGS: [&str; 2] = [".code-workspace", ".sublime-project"];
/// In a repository's own directory, also a bare one, files of these names are; so is everything in
/// its `hooks`.
const OBEYED_IN_GIT: [&str; 5] = [
    "config",
    "config.worktree",
    "attributes",
    "commondir",
    "git-rebase-todo",
];
/// Programs git runs from its `hooks` or wherever `core.hooksPath` says.
const GIT_HOOKS: [&str; 28] = [
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    UPDATE,
];
/// The one hook whose name is an everyday word: it is one in a directory called `hooks` only.
const UPDATE: &str = "update";

fn is(name: &[u8], word: &str) -> bool {
    name.eq_ignore_ascii_case(word.as_bytes())
}

fn listed(name: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| is(name, word))
}

/// What the directories above a name say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Folder {
    /// Everything is obeyed.
    whole: bool,
    /// A repository's own directory, or below it.
    git: bool,
    hooks: bool,
    ci: bool,
}

impl Folder {
    /// One in which everything is obeyed.
    pub(super) fn obeyed() -> Self {
        Self {
            whole: true,
            ..Self::default()
        }
    }

    /// The same directory, known to be a repository's own.
    pub(super) fn repository(self) -> Self {
        Self { git: true, ..self }
    }

    /// Whether it is a repository's own, or below it.
    pub(super) fn in_repository(self) -> bool {
        self.git
    }

    /// The directory of this name in this one.
    pub(super) fn enter(self, name: &[u8]) -> Self {
        Self {
            whole: self.whole || listed(name, &OBEYED_IN) || self.ci && listed(name, &CI_PARTS),
            git: self.git || is(name, ".git"),
            hooks: self.hooks || is(name, "hooks"),
            ci: listed(name, &CI),
        }
    }

    /// Whether a file in this directory is obeyed; `path` is its whole path.
    pub(super) fn obeys(self, path: &[u8]) -> bool {
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let tail = |words: &&[&str]| {
            let mut names = path.rsplit(|byte| *byte == b'/');
            let mut words = words.iter().rev();
            words.all(|word| names.next().is_some_and(|name| is(name, word)))
        };
        let ending = |word: &&str| {
            let start = last.len().checked_sub(word.len());
            start.is_some_and(|start| is(&last[start..], word))
        };
        self.whole
            || self.git && (self.hooks || listed(last, &OBEYED_IN_GIT))
            || is(last, ".git")
            || listed(last, &OBEYED)
            || listed(last, &GIT_HOOKS) && (self.hooks || !is(last, UPDATE))
            || OBEYED_ENDINGS.iter().any(ending)
            || OBEYED_TAILS.iter().any(tail)
    }

    /// Whether a link in this directory is obeyed: as a file, or as a directory that holds such.
    pub(super) fn obeys_link(self, path: &[u8]) -> bool {
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let parts = OBEYED_TAILS.iter().flat_map(|tail| &tail[..tail.len() - 1]);
        self.obeys(path)
            || self.git
            || self.enter(last) != self
            || parts.into_iter().any(|word| is(last, word))
    }
}

/// Whether the names of a directory are those of a repository's own directory, bare or linked.
pub(super) fn is_repository<'a>(names: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut head, mut objects, mut refs, mut common) = (false, false, false, false);
    for name in names {
        match name {
            b"HEAD" => head = true,
            b"objects" => objects = true,
            b"refs" => refs = true,
            b"commondir" => common = true,
            _ => {}
        }
    }
    head && (common || objects && refs)
}

/// Whether some program of a host runs or obeys a file of this path by itself.
#[must_use]
pub fn may_execute_on_host(path: &[u8]) -> bool {
    let mut folder = Folder::default();
    if let Some(end) = path.iter().rposition(|byte| *byte == b'/') {
        for name in path[..end].split(|byte| *byte == b'/') {
            folder = folder.enter(name);
        }
    }
    !path.is_empty() && folder.obeys(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_may_execute_is_marked() {
        for path in [
            ".git/hooks/pre-commit",
            "sub/.git/hooks/anything",
            ".GIT/Hooks/pre-commit",
            ".git/config",
            ".git/modules/x/config",
            ".git/modules/x/hooks/y",
            "sub/.git",
            "bare.git/hooks/post-receive",
            "hooks/update",
            ".githooks/pre-push",
            ".gitmodules",
            ".gitattributes",
            "deep/.envrc",
            ".vscode/tasks.json",
            ".idea/x/y.xml",
            ".bashrc",
            ".config/fish/config.fish",
            ".cargo/config.toml",
            ".github/workflows/ci.yml",
            "Jenkinsfile",
            "x.code-workspace",
            "pip.conf",
            "a/rust-toolchain.toml",
        ] {
            assert!(may_execute_on_host(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "out/result.csv",
            "config",
            "hooks/readme",
            ".gitignore",
            ".git/HEAD",
            "src/hooks/useThing.ts",
            "bin/update",
            "fish/config.fish",
            ".github/CODEOWNERS",
            "workflows/x.yml",
            "Makefile",
        ] {
            assert!(!may_execute_on_host(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_of_such_files_is_one_of_them() {
        let at = |path: &str| {
            let mut folder = Folder::default();
            let names: Vec<&str> = path.split('/').collect();
            for name in &names[..names.len() - 1] {
                folder = folder.enter(name.as_bytes());
            }
            folder.obeys_link(path.as_bytes())
        };
        for path in [
            ".git",
            ".git/hooks",
            "hooks",
            ".vscode",
            ".cargo",
            ".config/git",
            ".github",
        ] {
            assert!(at(path), "{path}");
        }
        for path in ["src", "data/latest", "node_modules/.bin"] {
            assert!(!at(path), "{path}");
        }
    }

    #[test]
    fn a_repository_is_known_by_what_is_in_it() {
        let names =
            |names: &[&'static str]| is_repository(names.iter().map(|name| name.as_bytes()));
        assert!(names(&["HEAD", "objects", "refs"]));
        assert!(names(&["HEAD", "commondir"]));
        assert!(!names(&["HEAD", "objects"]));
        assert!(!names(&["objects", "refs", "commondir"]));
    }
}
