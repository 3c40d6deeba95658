//! What is told of a WebAssembly module and of what its host saw. Pure; names are the module's, and made fit for
//! a terminal.

use leasehold_core::contract::HostPosture;
use leasehold_core::quantity::{format_bytes, format_moment};
use leasehold_core::record::ModuleReport;
use leasehold_core::spec::ModuleSpec;

use crate::voice::clean;

/// Functions of a backtrace that are told.
const FRAMES_MAX: usize = 8;

/// The module in one line.
pub(crate) fn program(module: &ModuleSpec) -> String {
    let mut text = format!("{} (WebAssembly), {}", clean(&module.name), module.digest);
    if let Some(script) = &module.script {
        text.push_str(&format!(", script {script}"));
    }
    if let Some(fuel) = module.fuel {
        text.push_str(&format!(", fuel {fuel}"));
    }
    if let Some(how) = module.determinism {
        text.push_str(&format!(
            ", deterministic: seed {}, clock at {} UTC",
            how.seed,
            format_moment(how.clock_ms)
        ));
    }
    text
}

/// The host in one line.
pub(crate) fn host(host: &HostPosture) -> String {
    let places = match host.places.as_slice() {
        [] => "no directory".to_owned(),
        places => clean(&places.join(" ")),
    };
    format!(
        "{}, program {}, seccomp {}, {places}",
        clean(&host.engine),
        host.program,
        clean(&host.seccomp_sha256)
    )
}

/// Where it trapped, innermost first; nothing where it did not.
pub(crate) fn trace(report: &ModuleReport) -> Option<String> {
    if report.backtrace.is_empty() {
        return None;
    }
    let frames: Vec<String> = report
        .backtrace
        .iter()
        .take(FRAMES_MAX)
        .map(|name| clean(name))
        .collect();
    let more = match report.backtrace.len() - frames.len() {
        0 => String::new(),
        more => format!(" < {more} more"),
    };
    Some(format!("{}{more}", frames.join(" < ")))
}

/// What else the caller should know of it.
pub(crate) fn notes(report: &ModuleReport) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(report.uncompiled.as_ref().map(|why| {
        let why = clean(why);
        format!("the compiler made no code of the module, so nothing of it ran: {why}")
    }));
    notes.extend(
        report
            .detail
            .as_ref()
            .map(|detail| format!("the WebAssembly host says: {}", clean(detail))),
    );
    notes.extend(trace(report).map(|trace| format!("it was in {trace}")));
    if report.http_denied > 0 {
        let to = match report.http_denied_to.as_slice() {
            [] => String::new(),
            to => format!(" ({})", clean(&to.join(", "))),
        };
        notes.push(format!(
            "{} outgoing HTTP requests were denied{to}",
            report.http_denied
        ));
    }
    notes
}

/// What it used, by its host's count.
pub(crate) fn used(report: &ModuleReport) -> String {
    let mut text = format!("memories peak {}", format_bytes(report.memory_peak_bytes));
    if let Some(fuel) = report.fuel_used {
        text.push_str(&format!(", fuel {fuel}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::digest::Digest;
    use leasehold_core::spec::Determinism;

    #[test]
    fn a_module_is_told_with_all_that_decides_its_run() {
        let mut module = ModuleSpec {
            digest: Digest::of(b"module"),
            name: "a\x1b.wasm".to_owned(),
            script: None,
            determinism: None,
            fuel: None,
        };
        let plain = program(&module);
        assert_eq!(
            plain,
            format!("a\\x1b.wasm (WebAssembly), {}", Digest::of(b"module"))
        );
        module.script = Some(Digest::of(b"script"));
        module.determinism = Some(Determinism::of_seed(7));
        module.fuel = Some(9);
        let all = program(&module);
        assert!(all.starts_with(&plain));
        for part in [
            Digest::of(b"script").to_string().as_str(),
            "fuel 9",
            "seed 7",
            "2000-01-01",
        ] {
            assert!(all.contains(part), "{all}");
        }
    }

    #[test]
    fn a_trap_says_where_and_how_deep() {
        let mut report = ModuleReport {
            backtrace: vec!["in\u{202e}ner".to_owned(), "_start".to_owned()],
            fuel_used: Some(3),
            memory_peak_bytes: 64 << 10,
            ..ModuleReport::default()
        };
        assert_eq!(notes(&report), ["it was in in\\u{202e}ner < _start"]);
        assert_eq!(used(&report), "memories peak 64 KiB, fuel 3");
        report.backtrace = (0..20).map(|at| format!("f{at}")).collect();
        assert!(trace(&report).unwrap().ends_with("f7 < 12 more"));
        report.http_denied = 2;
        report.http_denied_to = vec!["GET a.example".to_owned()];
        report.detail = Some("why".to_owned());
        let told = notes(&report);
        assert_eq!(told.len(), 3);
        assert!(told[0].ends_with("says: why") && told[2].contains("GET a.example"));
        assert!(notes(&ModuleReport::default()).is_empty());
    }

    #[test]
    fn it_is_the_compiler_that_made_no_code() {
        let report = ModuleReport {
            uncompiled: Some("compile_limit: too\x1blong".to_owned()),
            ..ModuleReport::default()
        };
        let told = "the compiler made no code of the module, so nothing of it ran: compile_limit: too\\x1blong";
        assert_eq!(notes(&report), [told]);
    }
}
