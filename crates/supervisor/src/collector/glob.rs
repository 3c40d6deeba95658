//! Which files of a workspace are wanted: a small matcher over bytes.
//!
//! `*` is any run of bytes of one name, `?` one byte, `[a-z]` and `[!a-z]` one byte of a set, `**`
//! any number of directories, `\` takes the next byte as it is. A leading dot is nothing special. A
//! directory that matches stands for everything below it, `.` for the whole tree. Names are bytes: no
//! name is excluded for not being UTF-8. Matching never backtracks over directories and takes at
//! most name × pattern steps within one, so no pattern is slow.

/// Most directories and names in one glob.
const PARTS_MAX: usize = 62;
/// The tree's path inside; a glob may say it in full.
const INSIDE: &str = "/workspace";

/// A glob that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("glob `{glob}` {why}")]
pub struct GlobError {
    /// The glob.
    pub glob: String,
    /// What is wrong with it.
    pub why: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Byte(u8),
    One,
    Many,
    Set {
        negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`: any number of directories.
    Deep,
    /// A name without wildcards.
    Literal(Vec<u8>),
    /// A name with wildcards.
    Pattern(Vec<Token>),
}

/// One parsed glob.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Glob {
    parts: Vec<Part>,
}

fn parse_glob(text: &str) -> Result<Glob, GlobError> {
    let fail = |why| GlobError {
        glob: text.chars().take(256).collect(),
        why,
    };
    let relative = match text.strip_prefix(INSIDE) {
        Some("") => ".",
        Some(below) if below.starts_with('/') => &below[1..],
        _ => text,
    };
    if relative.starts_with('/') {
        return Err(fail("is absolute: it must be relative to the workspace"));
    }
    let mut parts = Vec::new();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(fail("climbs with `..`")),
            "**" => {
                if parts.last() != Some(&Part::Deep) {
                    parts.push(Part::Deep);
                }
            }
            part => parts.push(parse_part(part.as_bytes()).map_err(fail)?),
        }
    }
    if text.is_empty() {
        return Err(fail("names nothing"));
    }
    if parts.is_empty() {
        // The workspace itself, and so everything in it.
        parts.push(Part::Deep);
    }
    if parts.len() > PARTS_MAX {
        return Err(fail("has more than 62 parts"));
    }
    Ok(Glob { parts })
}

fn parse_part(text: &[u8]) -> Result<Part, &'static str> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'*' => {
                if tokens.last() != Some(&Token::Many) {
                    tokens.push(Token::Many);
                }
            }
            b'?' => tokens.push(Token::One),
            b'[' => {
                let (set, length) = parse_set(&text[at..]).ok_or("has a `[` without its `]`")?;
                tokens.push(set);
                at += length;
            }
            b'\\' => {
                let next = text.get(at).ok_or("ends in a lone `\\`")?;
                tokens.push(Token::Byte(*next));
                at += 1;
            }
            byte => tokens.push(Token::Byte(byte)),
        }
    }
    let literal: Option<Vec<u8>> = tokens
        .iter()
        .map(|token| match token {
            Token::Byte(byte) => Some(*byte),
            Token::One | Token::Many | Token::Set { .. } => None,
        })
        .collect();
    match literal {
        Some(name) if name == b"." || name == b".." => Err("climbs with `..`"),
        Some(name) => Ok(Part::Literal(name)),
        None => Ok(Part::Pattern(tokens)),
    }
}

/// Reads a set behind its `[`; gives it and the bytes it took, its `]` included.
fn parse_set(text: &[u8]) -> Option<(Token, usize)> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut at = usize::from(negated);
    let first = at;
    let mut ranges = Vec::new();
    loop {
        let low = *text.get(at)?;
        if low == b']' && at > first {
            return Some((Token::Set { negated, ranges }, at + 1));
        }
        at += 1;
        let is_range = text.get(at) == Some(&b'-') && text.get(at + 1).is_some_and(|b| *b != b']');
        if is_range {
            ranges.push((low, text[at + 1]));
            at += 2;
        } else {
            ranges.push((low, low));
        }
    }
}

/// Whether a name matches, with one remembered place to return to: the last `*`.
fn name_matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut token, mut byte) = (0, 0);
    let mut last_many: Option<(usize, usize)> = None;
    while byte < name.len() {
        let one = match tokens.get(token) {
            Some(Token::Many) => {
                last_many = Some((token, byte));
                token += 1;
                continue;
            }
            Some(Token::One) => true,
            Some(Token::Byte(want)) => *want == name[byte],
            Some(Token::Set { negated, ranges }) => {
                let inside = ranges
                    .iter()
                    .any(|(low, high)| (*low..=*high).contains(&name[byte]));
                inside != *negated
            }
            None => false,
        };
        if one {
            token += 1;
            byte += 1;
        } else if let Some((many, taken)) = last_many {
            last_many = Some((many, taken + 1));
            token = many + 1;
            byte = taken + 1;
        } else {
            return false;
        }
    }
    tokens[token..].iter().all(|rest| *rest == Token::Many)
}

/// All globs of one collection.
#[derive(Debug, Clone)]
pub(super) struct Globs(Vec<Glob>);

/// How far each glob has come at one directory: a bit per part that may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress(Vec<u64>);

/// What one name means to the globs at its directory.
#[derive(Debug)]
pub(super) struct Step {
    /// How far they come below it.
    pub below: Progress,
    /// Which globs it matches whole, a bit each.
    pub whole: u64,
    /// Which globs named it as a directory on their way, other than by `**`, a bit each.
    pub named: u64,
}

impl Step {
    /// Whether anything below the name can match.
    pub(super) fn leads_on(&self, globs: &Globs) -> bool {
        globs
            .0
            .iter()
            .zip(&self.below.0)
            .any(|(glob, bits)| bits & ((1 << glob.parts.len()) - 1) != 0)
    }
}

impl Globs {
    /// Reads globs; at most 64, as `core` admits them.
    pub(super) fn parse(texts: &[String]) -> Result<Self, GlobError> {
        if texts.len() > leasehold_core::spec::GLOBS_MAX {
            return Err(GlobError {
                glob: format!("number {}", texts.len()),
                why: "is one too many: most is 64",
            });
        }
        texts
            .iter()
            .map(|text| parse_glob(text))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether a path is wanted, as a collection finds it: a directory that matches takes everything below it.
    pub(super) fn wants(&self, path: &[u8]) -> bool {
        if self.everything() != 0 {
            return true;
        }
        let mut progress = self.start();
        for name in path.split(|byte| *byte == b'/') {
            let step = self.step(&progress, name);
            if step.whole != 0 {
                return true;
            }
            if !step.leads_on(self) {
                return false;
            }
            progress = step.below;
        }
        false
    }

    /// Where all globs begin: at the workspace itself.
    pub(super) fn start(&self) -> Progress {
        Progress(self.0.iter().map(|glob| settle(glob, 1)).collect())
    }

    /// Whether `**` alone stands at the very beginning, so that the whole workspace is meant.
    pub(super) fn everything(&self) -> u64 {
        let whole = |glob: &Glob| glob.parts == [Part::Deep];
        self.bits(|index| whole(&self.0[index]))
    }

    /// The only names that matter at a directory, where no wildcard is due there.
    pub(super) fn names_due(&self, progress: &Progress) -> Option<Vec<&[u8]>> {
        let mut names = Vec::new();
        for (glob, bits) in self.0.iter().zip(&progress.0) {
            for (index, part) in glob.parts.iter().enumerate() {
                if bits & (1 << index) == 0 {
                    continue;
                }
                match part {
                    Part::Literal(name) => names.push(name.as_slice()),
                    Part::Deep | Part::Pattern(_) => return None,
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    /// Takes one name at a directory.
    pub(super) fn step(&self, progress: &Progress, name: &[u8]) -> Step {
        let mut step = Step {
            below: Progress(vec![0; self.0.len()]),
            whole: 0,
            named: 0,
        };
        for (at, (glob, bits)) in self.0.iter().zip(&progress.0).enumerate() {
            let mut next = 0;
            for (index, part) in glob.parts.iter().enumerate() {
                if bits & (1 << index) == 0 {
                    continue;
                }
                let hit = match part {
                    Part::Deep => {
                        next |= 1 << index;
                        continue;
                    }
                    Part::Literal(want) => want == name,
                    Part::Pattern(tokens) => name_matches(tokens, name),
                };
                if hit {
                    next |= 1 << (index + 1);
                    if index + 1 < glob.parts.len() {
                        step.named |= 1 << at;
                    }
                }
            }
            let next = settle(glob, next);
            if next & (1 << glob.parts.len()) != 0 {
                step.whole |= 1 << at;
            }
            step.below.0[at] = next;
        }
        step
    }

    fn bits(&self, holds: impl Fn(usize) -> bool) -> u64 {
        (0..self.0.len())
            .filter(|index| holds(*index))
            .fold(0, |bits, index| bits | 1 << index)
    }
}

/// `**` may also stand for no directory at all.
fn settle(glob: &Glob, mut bits: u64) -> u64 {
    for (index, part) in glob.parts.iter().enumerate() {
        if *part == Part::Deep && bits & (1 << index) != 0 {
            bits |= 1 << (index + 1);
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, path: &[u8]) -> bool {
        Globs::parse(&[glob.to_owned()]).unwrap().wants(path)
    }

    #[test]
    fn globs_match_what_they_say() {
        let cases: [(&str, &[u8], bool); 37] = [
            (".", b"any/thing", true),
            ("/workspace", b"any/thing", true),
            ("/workspace/./", b"any/thing", true),
            ("a", b"a", true),
            ("a", b"b", false),
            ("a/b", b"a/b", true),
            ("./a//b/", b"a/b", true),
            ("/workspace/a", b"a", true),
            ("*", b".hidden", true),
            ("*", b"d/x", true),
            ("*.csv", b"d/x.csv", false),
            ("out/*.csv", b"out/x.csv", true),
            ("out/*.csv", b"out/x.csv.gz", false),
            ("out/*.csv", b"out/d/x.csv", false),
            ("out", b"out/deep/er/x", true),
            ("out/**", b"out/deep/er/x", true),
            ("**", b"any/thing", true),
            ("**/x", b"x", true),
            ("**/x", b"a/b/x", true),
            ("**/x", b"a/b/y", false),
            ("a/**/b", b"a/b", true),
            ("a/**/b", b"a/1/2/b", true),
            ("a/**/b", b"a/1/2/c", false),
            ("**/**/x", b"a/x", true),
            ("**/a/*/b", b"a/a/x/b", true),
            ("?", b"\xff", true),
            ("?", b"ab", false),
            ("[a-c]x", b"bx", true),
            ("[a-c]x", b"dx", false),
            ("[!a-c]x", b"dx", true),
            ("[^a-c]x", b"bx", false),
            ("[]]", b"]", true),
            ("[a-]", b"-", true),
            ("a*b*c", b"aXbYbZc", true),
            ("a*b*c", b"aXbYbZ", false),
            (r"\*", b"*", true),
            (r"\*", b"x", false),
        ];
        for (glob, path, want) in cases {
            assert_eq!(
                matches(glob, path),
                want,
                "{glob} on {}",
                path.escape_ascii()
            );
        }
    }

    #[test]
    fn what_is_no_glob_is_refused() {
        let long = "a/".repeat(PARTS_MAX + 1);
        for glob in [
            "",
            "/",
            "/workspace2/a",
            "..",
            "a/../b",
            "/etc/passwd",
            "[a",
            "a\\",
            long.as_str(),
        ] {
            assert!(Globs::parse(&[glob.to_owned()]).is_err(), "{glob}");
        }
        assert!(Globs::parse(&vec!["a".to_owned(); 65]).is_err());
    }

    #[test]
    fn a_hostile_pattern_is_not_slow() {
        let glob = format!("{}b", "*a".repeat(120));
        let name = vec![b'a'; 255];
        let begun = std::time::Instant::now();
        assert!(!matches(&glob, &name));
        assert!(begun.elapsed() < std::time::Duration::from_secs(1));
    }

    #[test]
    fn only_names_due_are_looked_up_where_no_wildcard_is() {
        let globs = Globs::parse(&["a/b".into(), "a/c*".into(), "d".into()]).unwrap();
        let start = globs.start();
        assert_eq!(globs.names_due(&start), Some(vec![&b"a"[..], b"d"]));
        let step = globs.step(&start, b"a");
        assert_eq!((step.whole, step.named), (0, 0b011));
        assert_eq!(globs.names_due(&step.below), None);
    }

    /// What matching means, written without a thought for its cost.
    fn means(tokens: &[Token], name: &[u8]) -> bool {
        match (tokens.split_first(), name.split_first()) {
            (None, first) => first.is_none(),
            (Some((Token::Many, rest)), first) => {
                means(rest, name) || first.is_some_and(|(_, tail)| means(tokens, tail))
            }
            (Some(_), None) => false,
            (Some((token, rest)), Some((byte, tail))) => {
                name_matches(std::slice::from_ref(token), &[*byte]) && means(rest, tail)
            }
        }
    }

    #[test]
    fn the_quick_way_agrees_with_the_meaning() {
        let (patterns, names) = (b"ab*?[", b"ab");
        let mut state: u32 = 12_345;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % below
        };
        let mut matched = 0;
        for _ in 0..20_000 {
            let tokens: Vec<Token> = (0..draw(7))
                .map(|_| match patterns[draw(5)] {
                    b'*' => Token::Many,
                    b'?' => Token::One,
                    b'[' => Token::Set {
                        negated: draw(2) == 0,
                        ranges: vec![(b'b', b'c')],
                    },
                    byte => Token::Byte(byte),
                })
                .collect();
            let name: Vec<u8> = (0..draw(8)).map(|_| names[draw(2)]).collect();
            let want = means(&tokens, &name);
            assert_eq!(name_matches(&tokens, &name), want, "{tokens:?} {name:?}");
            matched += u32::from(want);
        }
        assert!((1_000..19_000).contains(&matched), "{matched} matched");
    }
}
