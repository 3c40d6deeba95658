//! The bars, and whether this machine showed them. A bar that could not be measured is never met.

use serde::Serialize;

use super::sample::Summary;

/// What became of a bar.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Measured, and good enough.
    Met,
    /// Measured, and not good enough.
    Missed,
    /// Not measured, for this reason.
    NotRunHere(String),
}

/// One bar, measured or not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bar {
    /// What is compared.
    pub(crate) what: String,
    /// What was measured, in the bar's own unit.
    pub(crate) measured: Option<f64>,
    /// What must hold, in words.
    pub(crate) must: String,
    /// Whether it does.
    pub(crate) verdict: Verdict,
}

/// Which side of its bound a measured value must be on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Must {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Bar {
    /// Judges a value.
    pub(crate) fn judge(
        what: impl Into<String>,
        measured: Result<f64, String>,
        must: Must,
        unit: &str,
    ) -> Self {
        let (sign, bound) = match must {
            Must::AtLeast(bound) => ("≥", bound),
            Must::AtMost(bound) => ("≤", bound),
        };
        let verdict = match &measured {
            Err(reason) => Verdict::NotRunHere(reason.clone()),
            Ok(value) if !value.is_finite() => Verdict::Missed,
            Ok(value) => {
                let good = match must {
                    Must::AtLeast(bound) => *value >= bound,
                    Must::AtMost(bound) => *value <= bound,
                };
                if good { Verdict::Met } else { Verdict::Missed }
            }
        };
        Self {
            what: what.into(),
            measured: measured.ok(),
            must: format!("{sign} {bound}{unit}"),
            verdict,
        }
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let (word, more) = match &self.verdict {
            Verdict::Met => ("met", String::new()),
            Verdict::Missed => ("MISSED", String::new()),
            Verdict::NotRunHere(reason) => ("not run here", format!(": {reason}")),
        };
        let measured = self
            .measured
            .map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        format!(
            "{word:<13} {:<46} {measured:>9}  {}{more}",
            self.what, self.must
        )
    }
}

/// A measured thing, or why it was not measured.
pub(crate) type Measured = Result<Summary, String>;

/// `upper ÷ lower` of one percentile of two things; the reason of whichever is missing.
pub(crate) fn ratio(
    upper: &Measured,
    lower: &Measured,
    pick: fn(&Summary) -> f64,
) -> Result<f64, String> {
    let (upper, lower) = (upper.as_ref()?, lower.as_ref()?);
    Ok(pick(upper) / pick(lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_that_was_not_measured_is_not_met() {
        let bar = Bar::judge("x", Err("no crun".into()), Must::AtMost(1.0), " ms");
        assert_eq!(bar.verdict, Verdict::NotRunHere("no crun".into()));
        assert!(bar.line().starts_with("not run here"), "{}", bar.line());
        assert!(bar.line().contains("no crun"));
        for (value, must, verdict) in [
            (15.0, Must::AtLeast(15.0), Verdict::Met),
            (14.9, Must::AtLeast(15.0), Verdict::Missed),
            (15.1, Must::AtMost(15.0), Verdict::Missed),
            (f64::NAN, Must::AtMost(15.0), Verdict::Missed),
            (f64::INFINITY, Must::AtLeast(15.0), Verdict::Missed),
        ] {
            let bar = Bar::judge("x", Ok(value), must, "");
            assert_eq!(bar.verdict, verdict, "{value}");
        }
    }
}
