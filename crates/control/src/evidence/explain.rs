//! A run in words: the six questions an incident responder asks, answered from its data alone.
//!
//! Whatever comes from a user, a guest or an image stands in quotes and cannot leave its line.

use leasehold_core::contract::{Contract, Enforcement};
use leasehold_core::event::{Event, RunFact};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::Resource;
use leasehold_core::outcome::{Outcome, StoredStream};
use leasehold_core::quantity::format_micros;
use leasehold_core::record::Observed;
use leasehold_core::run_contract::RunContract;
use leasehold_core::spec::{ModuleSpec, WorkspaceMode};

use super::bundle::Bundle;
use super::components::{boundary, trusted};
use super::plain::plain;
use super::statement::MadeFrom;

/// Most items of one list that are shown.
const ITEMS_MAX: usize = 50;

/// What is known of a run.
struct Story<'a> {
    bundle: &'a Bundle,
    /// The daemon's contract.
    contract: Option<RunContract>,
    /// What the backend promised of the computer.
    computer: Option<Contract>,
    observed: Option<&'a Observed>,
}

/// Answers the six questions. The bundle should have been verified before: nothing is checked here.
#[must_use]
pub fn explain(bundle: &Bundle) -> String {
    let story = Story::of(bundle);
    let mut out = Vec::new();
    story.begin(&mut out);
    out.push("1. What was the boundary, and what still shares the host's kernel?".to_owned());
    story.boundary(&mut out);
    out.push("2. Which object has identity?".to_owned());
    story.identity(&mut out);
    out.push("3. What state survived?".to_owned());
    story.state(&mut out);
    out.push("4. How were ingress, egress, identity, secrets and effects mediated?".to_owned());
    story.mediation(&mut out);
    out.push("5. What does the operator run and have to trust?".to_owned());
    story.operator(&mut out);
    out.push("6. How was cleanup proven?".to_owned());
    story.cleanup(&mut out);
    out.push(String::new());
    out.join("\n")
}

fn facts(events: &[Event]) -> impl DoubleEndedIterator<Item = &RunFact> {
    events.iter().map(|event| &event.fact)
}

/// At most [`ITEMS_MAX`] lines, then how many more there are.
fn list(out: &mut Vec<String>, items: impl ExactSizeIterator<Item = String>) {
    let more = items.len().saturating_sub(ITEMS_MAX);
    out.extend(items.take(ITEMS_MAX).map(|item| format!("     - {item}")));
    if more > 0 {
        out.push(format!("     - and {more} more"));
    }
}

fn words(items: &[String]) -> String {
    let shown: Vec<String> = items
        .iter()
        .take(ITEMS_MAX)
        .map(|item| plain(item))
        .collect();
    match items.len().saturating_sub(ITEMS_MAX) {
        0 => shown.join(" "),
        more => format!("{} and {more} more", shown.join(" ")),
    }
}

fn kept(stream: Option<&StoredStream>) -> String {
    match stream {
        None => "nothing of it is in this evidence".to_owned(),
        Some(kept) => {
            let cut = match kept.stream.truncated {
                true => format!(", cut from {}", kept.stream.written),
                false => String::new(),
            };
            let bytes = kept.stream.kept;
            match kept.digest {
                Some(digest) => format!("{bytes} bytes{cut}, {digest}"),
                None => format!("{bytes} bytes{cut}, which could not be kept"),
            }
        }
    }
}

impl<'a> Story<'a> {
    fn of(bundle: &'a Bundle) -> Self {
        let allocated = facts(&bundle.events).rev().find_map(|fact| match fact {
            RunFact::Allocated { computer, .. } => Some(computer),
            _ => None,
        });
        let computer = allocated.and_then(|computer| computer.as_deref().cloned());
        Self {
            bundle,
            contract: serde_json::from_value(bundle.contract.clone()).ok(),
            computer,
            observed: facts(&bundle.events).rev().find_map(|fact| match fact {
                RunFact::Cleaned { observed } => Some(observed),
                _ => None,
            }),
        }
    }

    fn outcome(&self) -> &Outcome {
        &self.bundle.outcome
    }

    fn had_computer(&self) -> bool {
        facts(&self.bundle.events).any(|fact| matches!(fact, RunFact::Allocated { .. }))
    }

    fn isolation(&self) -> Option<Isolation> {
        let selected = self
            .contract
            .as_ref()
            .map(|contract| contract.selected.isolation);
        selected.or(self.computer.as_ref().map(|computer| computer.isolation))
    }

    fn argv(&self) -> &[String] {
        let daemon = self.contract.as_ref().map(|contract| &contract.argv);
        let local = self.computer.as_ref().map(|computer| &computer.argv);
        daemon.or(local).map_or(&[], Vec::as_slice)
    }

    fn module(&self) -> Option<&ModuleSpec> {
        let daemon = self.contract.as_ref().map(|contract| &contract.program);
        let local = self.computer.as_ref().map(|computer| &computer.program);
        daemon.or(local)?.as_ref()
    }

    fn begin(&self, out: &mut Vec<String>) {
        let bundle = self.bundle;
        out.push(format!("run {} of tenant {}", bundle.run, bundle.tenant));
        if bundle.made_from == MadeFrom::SupervisorRecord {
            out.push("   told from the supervisor's record: it ran without a daemon".to_owned());
        }
        if let Some(tool) = self
            .contract
            .as_ref()
            .and_then(|contract| contract.tool.as_ref())
        {
            out.push(format!("   tool {tool}"));
        }
        out.push(format!("   command {}", words(self.argv())));
        if let Some(module) = self.module() {
            self.of_module(module, out);
        }
        let end = &self.outcome().end;
        out.push(format!("   it ended: {}", plain(&end.phrase())));
        let report = self.outcome().module.as_ref();
        if let Some(why) = report.and_then(|report| report.uncompiled.as_ref()) {
            out.push(format!(
                "   its compiler made no code of it: {}",
                plain(why)
            ));
        }
        if let Some(report) = report.filter(|report| !report.backtrace.is_empty()) {
            out.push(format!(
                "   in its functions, innermost first: {}",
                words(&report.backtrace)
            ));
        }
    }

    /// What it was in WebAssembly, and what its host counted.
    fn of_module(&self, module: &ModuleSpec, out: &mut Vec<String>) {
        let script = module.script.map_or_else(String::new, |digest| {
            format!(", an interpreter; its script is {digest}")
        });
        out.push(format!(
            "   of the WebAssembly module {}, {}{script}",
            plain(&module.name),
            module.digest
        ));
        out.push(match module.determinism {
            Some(how) => format!(
                "   deterministic: random numbers of the seed {}, fixed clocks",
                how.seed
            ),
            None => "   not deterministic: its clocks and random numbers were real".to_owned(),
        });
        let used = self.outcome().module.as_ref();
        match (used.and_then(|report| report.fuel_used), module.fuel) {
            (Some(used), Some(most)) => {
                out.push(format!("   fuel: {used} used, most was {most}"));
            }
            (Some(used), None) => out.push(format!("   fuel: {used} used, without a bound")),
            (None, _) => {}
        }
        let pulled = facts(&self.bundle.events).find_map(|fact| match fact {
            RunFact::Pulled { micros, .. } => Some(format_micros(*micros)),
            _ => None,
        });
        if let Some(took) = pulled {
            out.push(format!(
                "   its image was pulled first, for {took} that are no time of the run"
            ));
        }
        let compiled = facts(&self.bundle.events).find_map(|fact| match fact {
            RunFact::Compiled { micros, .. } => Some(format_micros(*micros)),
            _ => None,
        });
        if let Some(took) = compiled {
            out.push(format!(
                "   it was compiled first, for {took} that are no time of the run"
            ));
        }
    }

    fn boundary(&self, out: &mut Vec<String>) {
        let Some(isolation) = self.isolation() else {
            out.push("   there was no computer: nothing ran".to_owned());
            return;
        };
        if !self.had_computer() {
            out.push("   nothing was allocated for it".to_owned());
        }
        out.push(format!("   {}: {}", isolation.word(), boundary(isolation)));
        if let Some(selected) = self.contract.as_ref().map(|contract| &contract.selected) {
            let why = &selected.why;
            out.push(format!(
                "   backend {}, because {} (preferred {}, floor of the policies {}, trust class needs {})",
                plain(&selected.backend),
                plain(&selected.reason),
                why.preference.word(),
                why.floor.word(),
                why.required.word()
            ));
        }
        let Some(computer) = &self.computer else {
            return;
        };
        if let Some(image) = &computer.image {
            out.push(format!(
                "   its root was the image {}, with a layer of its own that is gone; its command was user {} there",
                image.digest, image.user.uid
            ));
        }
        let posture = &computer.posture;
        out.push(format!(
            "   posture {}, kernel {}, seccomp {}, Landlock {}",
            plain(&posture.profile),
            plain(&posture.kernel),
            plain(&posture.seccomp_sha256),
            posture.landlock_abi
        ));
        if let Some(host) = &posture.host {
            out.push(format!(
                "   in it a WebAssembly host that confines itself: {}, program {}, seccomp {}, keeps {}",
                plain(&host.engine),
                host.program,
                plain(&host.seccomp_sha256),
                match host.places.is_empty() {
                    true => "no directory".to_owned(),
                    false => words(&host.places),
                }
            ));
        }
        match posture.missing.is_empty() {
            true => out.push("   no control of the hardening list was missing".to_owned()),
            false => out.push(format!(
                "   missing on this host: {}",
                words(&posture.missing)
            )),
        }
        let loose: Vec<String> = computer
            .enforcement
            .iter()
            .filter(|limit| limit.how != Enforcement::Enforced)
            .map(|limit| limit.which.word().to_owned())
            .collect();
        if !loose.is_empty() {
            out.push(format!(
                "   limits that were not enforced here: {}",
                loose.join(", ")
            ));
        }
    }

    fn identity(&self, out: &mut Vec<String>) {
        if let Some(contract) = &self.contract {
            out.push(format!(
                "   the run, asked by {} of project {} ({}, key {})",
                contract.principal,
                contract.project,
                contract.role.word(),
                contract.key
            ));
        } else {
            out.push("   the run, asked by whoever may use the supervisor's socket".to_owned());
        }
        let sandboxes: Vec<String> = facts(&self.bundle.events)
            .filter_map(|fact| match fact {
                RunFact::Allocated { sandbox, warm, .. } => {
                    let how = if *warm { "a warm slot" } else { "made for it" };
                    Some(format!("sandbox {sandbox} ({how})"))
                }
                _ => None,
            })
            .collect();
        list(out, sandboxes.into_iter());
        out.push("   the workload has none: no token of a service, no key, no account".to_owned());
        if let Some(posture) = self.computer.as_ref().map(|computer| &computer.posture) {
            let (first, count) = posture.uid_range;
            let own_range = posture.maker == "root";
            out.push(match posture.single_uid && !own_range {
                true => "   on the host it was the caller's own user id".to_owned(),
                false => {
                    format!("   on the host it had user ids {first} and the {count} from there")
                }
            });
        }
    }

    fn state(&self, out: &mut Vec<String>) {
        let daemon = self
            .contract
            .as_ref()
            .map(|contract| contract.workspace.mode);
        let local = self.computer.as_ref().map(|computer| computer.workspace);
        out.push(match daemon.or(local) {
            None => "   there was no workspace".to_owned(),
            Some(WorkspaceMode::Ephemeral) => "   the workspace was its own and is gone".to_owned(),
            Some(WorkspaceMode::ReadOnly) => {
                "   a directory of the host was readable and is unchanged".to_owned()
            }
            Some(WorkspaceMode::Clone) => {
                "   a directory of the host was there as a disposable copy, which is gone"
                    .to_owned()
            }
            Some(WorkspaceMode::ReadWrite) => {
                "   a directory of the host was writable: what the workload changed in it stays"
                    .to_owned()
            }
        });
        let outcome = self.outcome();
        out.push(format!(
            "   standard output: {}",
            kept(outcome.stdout.as_ref())
        ));
        out.push(format!(
            "   standard error: {}",
            kept(outcome.stderr.as_ref())
        ));
        out.push(format!("   artifacts: {}", outcome.artifacts.len()));
        let artifacts = outcome.artifacts.iter().map(|artifact| {
            let what = match (&artifact.sha256, &artifact.skipped) {
                (Some(digest), _) => format!("{} bytes, sha256:{}", artifact.bytes, plain(digest)),
                (None, Some(why)) => format!("not taken: {}", plain(why)),
                (None, None) => "not taken".to_owned(),
            };
            let warned = match artifact.may_execute_on_host {
                true => "; the host may execute it later",
                false => "",
            };
            format!("{}: {what}{warned}", plain(&artifact.path))
        });
        list(out, artifacts);
        if let Some(retention) = self.contract.as_ref().map(|contract| contract.retention) {
            out.push(format!(
                "   kept for: output {} s, artifacts {} s, record {} s",
                retention.logs_s, retention.artifacts_s, retention.record_s
            ));
        }
    }

    fn mediation(&self, out: &mut Vec<String>) {
        let Some(contract) = &self.contract else {
            out.push("   ingress and egress: no network, but loopback inside".to_owned());
            out.push(
                "   secrets: none were given by us; values of its environment are not on record"
                    .to_owned(),
            );
            out.push("   effects outside: none were permitted".to_owned());
            return;
        };
        let network = &contract.network;
        let ports: Vec<String> = network.ingress.iter().map(u16::to_string).collect();
        out.push(match ports.is_empty() {
            true => "   ingress: none".to_owned(),
            false => format!("   ingress: ports {}", ports.join(", ")),
        });
        out.push(match network.egress.is_empty() {
            true => "   egress: none; there is no route".to_owned(),
            false => format!("   egress: only {}", words(&network.egress)),
        });
        out.push(match contract.credentials.is_empty() {
            true => "   secrets: none".to_owned(),
            false => format!(
                "   secrets: {} granted by reference",
                contract.credentials.len()
            ),
        });
        let granted = contract.credentials.iter().map(|grant| {
            let (name, from) = (plain(&grant.name), plain(&grant.secret_ref));
            format!(
                "{name} from {from}, as {}, for {} ms",
                plain(&grant.way),
                grant.ttl_ms
            )
        });
        list(out, granted);
        let count = |test: fn(&RunFact) -> bool| {
            facts(&self.bundle.events).filter(|fact| test(fact)).count()
        };
        let issued = count(|fact| matches!(fact, RunFact::CredentialIssued { .. }));
        let revoked = count(|fact| matches!(fact, RunFact::CredentialRevoked { .. }));
        if issued > 0 {
            out.push(format!(
                "   of these {issued} were handed out and {revoked} taken back"
            ));
        }
        out.push(match contract.permissions.is_empty() {
            true => "   effects outside: none were permitted".to_owned(),
            false => format!("   effects outside: {}", words(&contract.permissions)),
        });
        let policies = contract.policies.iter().map(|used| {
            format!(
                "policy {} version {}, {}",
                plain(&used.scope),
                used.version,
                used.digest
            )
        });
        list(out, policies);
    }

    fn operator(&self, out: &mut Vec<String>) {
        let Some(isolation) = self.isolation() else {
            out.push("   nothing ran, so nothing had to hold it in".to_owned());
            return;
        };
        let parts = trusted(isolation, self.bundle.made_from);
        out.push(format!("   {} trusted components:", parts.len()));
        list(out, parts.into_iter().map(str::to_owned));
    }

    fn cleanup(&self, out: &mut Vec<String>) {
        let revoked = self
            .bundle
            .events
            .iter()
            .find(|event| matches!(event.fact, RunFact::AuthorityRevoked { .. }));
        if let Some(event) = revoked {
            out.push(format!(
                "   authority was revoked first (event {})",
                event.seq
            ));
        }
        let residues = self.observed.map_or(&[][..], |observed| &observed.residues);
        if residues.is_empty() {
            out.push(match self.had_computer() {
                true => "   NOT PROVEN: nothing was observed after removal".to_owned(),
                false => "   nothing was allocated, so nothing was there to remove".to_owned(),
            });
            return;
        }
        let left = residues.iter().filter(|residue| !residue.clean).count();
        let inferred = residues.iter().filter(|residue| residue.inferred).count();
        out.push(match left {
            0 => format!(
                "   clean: the host looked after removal, and all {} kinds are gone, {inferred} of them inferred from the others",
                residues.len()
            ),
            _ => format!("   NOT CLEAN: of {} kinds {left} are left", residues.len()),
        });
        // What is left comes first, so that no bound hides it.
        let mut sorted: Vec<_> = residues.iter().collect();
        sorted.sort_by_key(|residue| residue.clean);
        let seen = sorted.into_iter().map(|residue| {
            let how = match (residue.clean, residue.inferred) {
                (true, false) => "gone",
                (true, true) => "gone, inferred",
                (false, _) => "LEFT",
            };
            format!(
                "{how}: {} ({})",
                plain(&residue.resource),
                plain(&residue.detail)
            )
        });
        list(out, seen);
        let denied: Vec<&str> = self
            .outcome()
            .limits_hit
            .iter()
            .map(|hit| Resource::word(hit.which))
            .collect();
        if !denied.is_empty() {
            out.push(format!(
                "   limits that were reached: {}",
                denied.join(", ")
            ));
        }
    }
}
