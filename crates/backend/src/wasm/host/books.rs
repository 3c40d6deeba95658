//! What a host has: modules, runs, and the memory that both may come to use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use leasehold_core::digest::Digest;
use leasehold_core::id::RunId;
use leasehold_protocol::wasm::Kind;

use super::super::code::Code;
use super::super::run::SharedRun;

/// Most modules of a host.
const MODULES_MAX: usize = 64;
/// Numbers of modules have this bit, and those of runs do not: a refusal has one number for both.
const MODULE: u32 = 1 << 31;
/// What a run may use beside the memory of its module: stacks, streams, what one call copies.
const BESIDE: u64 = 24 << 20;

/// A module that was sent.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) number: u32,
    bytes: u64,
    used: u64,
    runs: usize,
    /// Why the host cannot use it.
    refused: Option<String>,
}

/// Input that goes to a run as it takes it.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) bytes: Arc<[u8]>,
    /// Bytes that were sent.
    pub(super) sent: usize,
    /// Of these, bytes that were not told as taken.
    pub(super) ahead: u64,
}

/// A run that has a place.
#[derive(Debug)]
pub(super) struct Held {
    /// Absent until it is begun.
    pub(super) run: Option<(RunId, Arc<SharedRun>)>,
    pub(super) code: Digest,
    bytes: u64,
    /// When the host is given up if the run is still there.
    pub(super) deadline: Option<Instant>,
    pub(super) feed: Option<Feed>,
}

/// A place for a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) run: u32,
    pub(super) module: u32,
    /// Modules that go for it, and whether its own has to be sent.
    pub(super) unload: Vec<u32>,
    pub(super) load: bool,
}

/// Where a host is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It takes runs.
    Open,
    /// It takes no more, and ends with its last.
    Retiring,
    /// It is ended or about to be.
    Over,
}

#[derive(Debug)]
pub(super) struct Books {
    pub(super) phase: Phase,
    pub(super) runs: HashMap<u32, Held>,
    modules: HashMap<Digest, Loaded>,
    bytes: u64,
    bytes_max: u64,
    runs_max: usize,
    next_run: u32,
    next_module: u32,
    /// Modules that were sent, as many as the host has not answered for.
    unanswered: u32,
    tick: u64,
    /// Somebody's runs are or were in it.
    pub(super) owned: bool,
    /// Runs that were ever begun.
    pub(super) served: u64,
    pub(super) idle_since: Instant,
}

/// Bytes that code may take in a host: that of a module is mapped from its file, that of a component copied twice.
fn weight(code: &Code) -> u64 {
    match code.kind {
        Kind::Core => code.sealed.bytes,
        Kind::Component => code.sealed.bytes.saturating_mul(2),
    }
}

/// Bytes that a run of this code, which may use so much memory, needs in a host that has no other; `None` where
/// no number is so large.
pub(super) fn need(code: &Code, memory: u64) -> Option<u64> {
    memory.checked_add(BESIDE)?.checked_add(weight(code))
}

impl Books {
    pub(super) fn new(bytes_max: u64, runs_max: usize) -> Self {
        Self {
            phase: Phase::Open,
            runs: HashMap::new(),
            modules: HashMap::new(),
            bytes: 0,
            bytes_max,
            runs_max,
            next_run: 0,
            next_module: 0,
            unanswered: 0,
            tick: 0,
            owned: false,
            served: 0,
            idle_since: Instant::now(),
        }
    }

    pub(super) fn has(&self, code: &Digest) -> bool {
        self.modules.contains_key(code)
    }

    /// Takes a place for a run of this code that may use so much memory; `None` where there is none.
    pub(super) fn take(&mut self, code: &Code, memory: u64) -> Option<Place> {
        if self.phase != Phase::Open || self.runs.len() >= self.runs_max {
            return None;
        }
        let bytes = memory.checked_add(BESIDE)?;
        let key = code.sealed.digest;
        let there = self.has(&key);
        let more = if there { 0 } else { weight(code) };
        let unload = self.make_room(bytes.checked_add(more)?, !there, &key)?;
        self.tick += 1;
        if !there {
            let number = MODULE | self.next_module;
            self.next_module = (self.next_module + 1) & !MODULE;
            self.unanswered += 1;
            let loaded = Loaded {
                number,
                bytes: more,
                used: 0,
                runs: 0,
                refused: None,
            };
            self.modules.insert(key, loaded);
        }
        self.bytes += bytes + more;
        let tick = self.tick;
        let loaded = self.modules.get_mut(&key)?;
        loaded.used = tick;
        loaded.runs += 1;
        let module = loaded.number;
        while self.runs.contains_key(&self.next_run) {
            self.next_run = (self.next_run + 1) & !MODULE;
        }
        let run = self.next_run;
        self.next_run = (self.next_run + 1) & !MODULE;
        let held = Held {
            run: None,
            code: key,
            bytes,
            deadline: None,
            feed: None,
        };
        self.runs.insert(run, held);
        Some(Place {
            run,
            module,
            unload,
            load: !there,
        })
    }

    /// Drops modules that no run has, the longest unused first, until so many bytes and, if asked, one more
    /// module fit. Nothing is dropped where that is not enough.
    fn make_room(&mut self, bytes: u64, one_more: bool, spared: &Digest) -> Option<Vec<u32>> {
        let idle = self.modules.iter();
        let idle = idle.filter(|(code, loaded)| loaded.runs == 0 && *code != spared);
        let mut idle: Vec<_> = idle
            .map(|(code, loaded)| (loaded.used, *code, loaded.bytes))
            .collect();
        idle.sort_unstable_by_key(|(used, ..)| *used);
        let mut left = self.bytes_max.saturating_sub(self.bytes);
        let mut count = self.modules.len();
        let mut going = Vec::new();
        let mut idle = idle.into_iter();
        while left < bytes || (one_more && count >= MODULES_MAX) {
            let (_, code, freed) = idle.next()?;
            left += freed;
            count -= 1;
            going.push(code);
        }
        let gone = going.iter().filter_map(|code| self.modules.remove(code));
        let gone: Vec<Loaded> = gone.collect();
        self.bytes -= gone.iter().map(|loaded| loaded.bytes).sum::<u64>();
        Some(gone.into_iter().map(|loaded| loaded.number).collect())
    }

    /// Gives a place back. Says why the module could not be used, if so.
    pub(super) fn release(&mut self, run: u32) -> Option<(Held, Option<String>)> {
        let held = self.runs.remove(&run)?;
        self.bytes -= held.bytes;
        let mut refused = None;
        if let Some(loaded) = self.modules.get_mut(&held.code) {
            loaded.runs -= 1;
            refused.clone_from(&loaded.refused);
            if loaded.runs == 0 && refused.is_some() {
                self.bytes -= loaded.bytes;
                self.modules.remove(&held.code);
            }
        }
        if self.runs.is_empty() {
            self.idle_since = Instant::now();
        }
        Some((held, refused))
    }

    /// Takes the host's one answer for a module that it was sent. Says whether it owed any.
    pub(super) fn answered(&mut self, number: u32) -> bool {
        let owed = Self::names_module(number) && self.unanswered > 0;
        self.unanswered -= u32::from(owed);
        owed
    }

    /// Notes that the host cannot use a module. Says whether it is one that was sent.
    pub(super) fn refuse(&mut self, module: u32, why: String) -> bool {
        let found = self.modules.values_mut();
        let found = found.into_iter().find(|loaded| loaded.number == module);
        found.map(|loaded| loaded.refused = Some(why)).is_some()
    }

    /// Whether a number is that of a module.
    pub(super) fn names_module(number: u32) -> bool {
        number & MODULE != 0
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::wasm::Flavour;

    use super::*;
    use crate::wasm::sealed;

    const MIB: u64 = 1 << 20;

    fn code(name: &str, kind: Kind) -> Code {
        let bytes = [name.as_bytes(), &[0; MIB as usize]].concat();
        Code {
            kind,
            flavour: Flavour::Plain,
            sealed: sealed::copy("test", &mut bytes.as_slice(), 2 * MIB).unwrap(),
        }
    }

    fn books(mib: u64) -> Books {
        Books::new(mib * MIB, 64)
    }

    #[test]
    fn a_module_is_sent_once_and_numbers_are_apart() {
        let mut books = books(1_000);
        let module = code("a", Kind::Core);
        let first = books.take(&module, MIB).unwrap();
        let second = books.take(&module, MIB).unwrap();
        assert!(first.load && !second.load);
        assert_eq!(first.module, second.module);
        assert_ne!(first.run, second.run);
        assert!(Books::names_module(first.module) && !Books::names_module(first.run));
    }

    #[test]
    fn no_more_memory_is_promised_than_there_is() {
        let mut books = books(100);
        let module = code("a", Kind::Core);
        assert!(
            books.take(&module, 100 * MIB).is_none(),
            "what it needs beside"
        );
        let place = books.take(&module, 70 * MIB).unwrap();
        assert!(books.take(&module, 70 * MIB).is_none());
        assert!(books.take(&code("b", Kind::Core), MIB).is_none());
        books.release(place.run).unwrap();
        assert!(books.take(&module, 70 * MIB).is_some());
        let mut few = Books::new(1_000 * MIB, 2);
        assert!(few.take(&module, 0).is_some() && few.take(&module, 0).is_some());
        assert!(few.take(&module, 0).is_none());
        let mut huge = self::books(1_000);
        assert!(huge.take(&module, u64::MAX).is_none());
    }

    #[test]
    fn modules_without_a_run_make_room_and_others_never() {
        let mut books = books(70);
        let codes = ["a", "b", "c"].map(|name| code(name, Kind::Component));
        let places = codes.each_ref().map(|code| {
            let place = books.take(code, 0);
            place
                .inspect(|place| drop(books.release(place.run)))
                .unwrap()
        });
        assert!(places.iter().all(|place| place.load));
        // Used again, it is not the first to go.
        let again = books.take(&codes[0], 0).unwrap();
        assert!(!again.load);
        let more = books.take(&code("d", Kind::Core), 18 * MIB).unwrap();
        assert_eq!(more.unload, [places[1].module, places[2].module]);
        assert!(books.take(&code("e", Kind::Core), 0).is_none());
        assert!(
            books.has(&codes[0].sealed.digest),
            "nothing went for nothing"
        );
        books.release(again.run).unwrap();
        books.release(more.run).unwrap();
        assert!(books.take(&code("e", Kind::Core), 0).is_some());
    }

    #[test]
    fn a_host_holds_a_bounded_number_of_modules() {
        let mut books = books(100_000);
        let mut unloaded = 0;
        for number in 0..MODULES_MAX + 5 {
            let place = books
                .take(&code(&number.to_string(), Kind::Core), 0)
                .unwrap();
            unloaded += place.unload.len();
            books.release(place.run).unwrap();
        }
        assert_eq!((books.modules.len(), unloaded), (MODULES_MAX, 5));
    }

    #[test]
    fn a_module_that_is_refused_is_sent_again_to_whoever_comes_later() {
        let mut books = books(100);
        let module = code("a", Kind::Core);
        let place = books.take(&module, 0).unwrap();
        assert!(books.refuse(place.module, "no such import".to_owned()));
        assert!(!books.refuse(7, String::new()));
        let (_, why) = books.release(place.run).unwrap();
        assert_eq!(why.unwrap(), "no such import");
        assert!(books.take(&module, 0).unwrap().load);
        assert!(books.release(place.run + 7).is_none());
        books.phase = Phase::Retiring;
        assert!(books.take(&module, 0).is_none());
    }
}
