//! Records on a file system of their own.

use super::*;
use crate::scratch_directory::ScratchDirectory;
use leasehold_core::end::EndReason;
use leasehold_core::id::SandboxId;
use leasehold_core::record::RECORD_VERSION;

fn record(letter: u8) -> RunRecord {
    RunRecord {
        version: RECORD_VERSION,
        run: RunId::from_entropy(&[letter; 13]),
        sandbox: SandboxId::from_entropy(&[letter; 13]),
        accepted_unix_ms: letter.into(),
        contract: None,
        end: None,
        exit: None,
        limits_hit: Vec::new(),
        warm: false,
        stages: Vec::new(),
        usage: Default::default(),
        stdout: Default::default(),
        stderr: Default::default(),
        artifacts: Vec::new(),
        may_execute_on_host: None,
        module: None,
        bound: false,
        cleanup: None,
        pruned_unix_ms: None,
    }
}

#[test]
fn a_run_is_open_from_its_first_record_to_its_last() {
    let place = ScratchDirectory::new("records");
    let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
    paths.create().unwrap();
    let records = Records::open(&paths).unwrap();
    let other = SandboxId::from_entropy(&[9; 13]);
    let mut first = record(1);
    let mut spares = Spares::open(&paths).unwrap();
    let mut begin = |record: &RunRecord| {
        let blank = records.blank(&other, &mut spares).unwrap();
        let (mut folder, spools) = records.begin(blank, record)?;
        records.name(&mut folder, &record.run).unwrap();
        Ok::<_, RecordError>((folder, spools))
    };
    let (mut folder, _spools) = begin(&first).unwrap();
    assert!(matches!(begin(&first), Err(RecordError::Exists(_))));
    assert_eq!(records.unfinished().unwrap(), [first.run.clone()]);
    assert_eq!(records.read(&first.run).unwrap().unwrap(), first);
    first.end = Some(EndReason::HostLost);
    folder.write(&first).unwrap();
    assert_eq!(records.read(&first.run).unwrap().unwrap(), first);
    // Shorter than the one before last: nothing of that may be left.
    first.end = None;
    folder.write(&first).unwrap();
    assert_eq!(records.read(&first.run).unwrap().unwrap(), first);
    first.end = Some(EndReason::Completed);
    let mut others = Spares::open(&paths).unwrap();
    let bytes = encode(&first).unwrap();
    folder.write_last(&first.run, &bytes, &mut others).unwrap();
    records.close(&first.run);
    records.close(&first.run);
    assert_eq!(records.unfinished().unwrap(), []);
    assert!(matches!(begin(&first), Err(RecordError::Exists(_))));
    assert_eq!(
        records.unfinished().unwrap(),
        [],
        "a refused run stays open"
    );
    assert_eq!(records.read(&first.run).unwrap().unwrap(), first);
    assert_eq!(records.read(&record(9).run).unwrap(), None);
}

#[test]
fn runs_are_listed_newest_first_and_found_by_prefix() {
    let place = ScratchDirectory::new("records-list");
    let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
    paths.create().unwrap();
    let records = Records::open(&paths).unwrap();
    let mut spares = Spares::open(&paths).unwrap();
    for letter in [3, 200, 77] {
        let record = record(letter);
        let blank = records.blank(&record.sandbox, &mut spares).unwrap();
        let (mut folder, _spools) = records.begin(blank, &record).unwrap();
        records.name(&mut folder, &record.run).unwrap();
    }
    let newest: Vec<u64> = records
        .list(2)
        .unwrap()
        .iter()
        .map(|record| record.accepted_unix_ms)
        .collect();
    assert_eq!(newest, [200, 77]);
    let wanted = record(77).run;
    assert_eq!(records.matching(&wanted.as_str()[..6]).unwrap(), [wanted]);
    assert_eq!(records.matching("r").unwrap().len(), 2);
}

#[test]
fn a_successor_names_what_was_recorded_and_removes_what_was_not() {
    let place = ScratchDirectory::new("records-settle");
    let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
    paths.create().unwrap();
    let records = Records::open(&paths).unwrap();
    let mut spares = Spares::open(&paths).unwrap();
    let mut blank = |letter| {
        let id = SandboxId::from_entropy(&[letter; 13]);
        records.blank(&id, &mut spares).unwrap()
    };
    let (empty, torn, recorded, marked) = (blank(1), blank(2), blank(3), blank(4));
    let bytes = to_bytes(&record(2)).unwrap();
    write_whole(&torn.record, &bytes[..bytes.len() / 2]).unwrap();
    records.begin(recorded, &record(3)).unwrap();
    let (folder, _spools) = records.begin(marked, &record(4)).unwrap();
    let fourth = record(4).run;
    let none = AtFlags::empty();
    linkat(
        &folder.directory,
        RECORD,
        &records.open,
        fourth.as_str(),
        none,
    )
    .unwrap();
    drop((empty, torn));
    assert_eq!(records.all().unwrap(), [], "nothing has its name yet");
    records.settle_blanks();
    let mut named = records.all().unwrap();
    named.sort();
    assert_eq!(named, [record(3).run, fourth]);
    assert_eq!(records.read(&record(3).run).unwrap().unwrap(), record(3));
    assert_eq!(records.unfinished().unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(paths.blank_runs()).unwrap().count(), 0);
}
