//! What the command line of an interpreter means, as far as whoever starts it must know: which of the words is the
//! name of a script.

use crate::Interpreter;

impl Interpreter {
    /// The place of the script's name in `words`, which are what comes behind the interpreter's own name. `None`
    /// where the program is given otherwise (`-c`, `-m`, `-e`, standard input) or the words make no sense, which
    /// the interpreter says itself.
    #[must_use]
    pub fn script_at(self, words: &[String]) -> Option<usize> {
        match self {
            Self::Python => python(words),
            Self::JavaScript => {
                let first = words.first()?;
                (!first.starts_with('-')).then_some(0)
            }
        }
    }
}

/// As `python/_leasehold/command.py` reads it.
fn python(words: &[String]) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let Some(letters) = word.strip_prefix('-') else {
            return Some(at);
        };
        if letters.is_empty() || letters.starts_with('-') {
            return None;
        }
        at += 1;
        let value = letters.find(['c', 'm', 'W', 'X', 'V', 'h', '?']);
        match value.map(|from| letters.split_at(from)) {
            None => {}
            Some((_, rest)) if rest.starts_with(['W', 'X']) => {
                // Its value is the rest of the word, else the next one.
                at += usize::from(rest.len() == 1);
            }
            Some(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_found_behind_the_options() {
        let cases: [(Interpreter, &[&str], Option<usize>); 18] = [
            (Interpreter::Python, &["a.py", "-c"], Some(0)),
            (Interpreter::Python, &["-u", "a.py"], Some(1)),
            (Interpreter::Python, &["-W", "error", "a.py"], Some(2)),
            (
                Interpreter::Python,
                &["-Werror", "-bX", "dev", "a.py"],
                Some(3),
            ),
            (Interpreter::Python, &["-c", "print(1)", "a.py"], None),
            (Interpreter::Python, &["-Bcprint(1)", "a.py"], None),
            (Interpreter::Python, &["-um", "json.tool", "a.py"], None),
            (Interpreter::Python, &["-"], None),
            (Interpreter::Python, &["-V", "a.py"], None),
            (Interpreter::Python, &["--script", "n", "t"], None),
            (Interpreter::Python, &["--version"], None),
            (Interpreter::Python, &["-W"], None),
            (Interpreter::Python, &[], None),
            (Interpreter::JavaScript, &["a.js", "-e"], Some(0)),
            (Interpreter::JavaScript, &["-e", "1", "a.js"], None),
            (Interpreter::JavaScript, &["-"], None),
            (Interpreter::JavaScript, &["--script", "n", "t"], None),
            (Interpreter::JavaScript, &[], None),
        ];
        for (interpreter, words, wanted) in cases {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(interpreter.script_at(&words), wanted, "{words:?}");
        }
    }
}
