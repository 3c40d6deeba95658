//! Modules that cannot be compiled, that were made not to be, and what compiling costs others.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_backend::seam::{Backend as _, Doing};
use leasehold_backend::wasm::{
    CompileBound, CompileError, CompileLimits, Module, ModuleSource, Origin, WasmBounds,
};
use leasehold_core::digest::Digest;
use leasehold_core::end::EndReason;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::wasm::Flavour;

use super::{Rig, guests, module, order, tenant};

const PLAIN: Flavour = Flavour::Plain;

/// One function in which a thousand values are alive over sixty thousand loops: minutes of one processor. One
/// name is one module.
fn slow(name: &str) -> Module {
    let mut text = format!("(module (func (export \"_start\")) (func (export {name:?}) (local");
    for _ in 0..1_000 {
        text.push_str(" i32");
    }
    text.push(')');
    for at in 0..60_000 {
        let (one, other) = (at % 1_000, (at * 7 + 1) % 1_000);
        write!(
            text,
            "(loop (local.set {one} (i32.add (local.get {one}) (local.get {other}))) (br_if 0 (local.get {other})))"
        )
        .unwrap();
    }
    text.push_str("))");
    module(&text)
}

/// Very many small functions.
fn large() -> Module {
    let mut text = String::from("(module (func (export \"_start\"))");
    for at in 0..12_000 {
        write!(text, "(func (param i32) (result i32) (i32.const {at}))").unwrap();
    }
    text.push(')');
    module(&text)
}

fn bounded(test: &str, change: impl FnOnce(&mut CompileLimits)) -> Option<Rig> {
    let mut bounds = WasmBounds::default();
    change(&mut bounds.compile);
    Rig::bounded(test, &bounds)
}

async fn refused(rig: &Rig, module: &Module) -> CompileError {
    rig.backend.prepare(module, PLAIN, None).await.unwrap_err()
}

async fn bound(rig: &Rig, module: &Module) -> CompileBound {
    match refused(rig, module).await {
        CompileError::Limit { bound, said, limit } => {
            assert!(limit > 0);
            assert!(
                said.contains("compiling it takes") || said.contains("is longer than"),
                "{said}"
            );
            bound
        }
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn what_is_no_module_is_told_in_the_compilers_words() {
    let Some(rig) = Rig::new("what_is_no_module_is_told_in_the_compilers_words") else {
        return;
    };
    let hello = wat::parse_str(guests::hello()).unwrap();
    let cases = [
        (&b""[..], "magic number"),
        (b"#!/bin/sh\n", "magic number"),
        (b"\0asm\x01\0\0\0\xff", "not a valid"),
        (&hello[..hello.len() / 2], "not a valid"),
    ];
    for (bytes, words) in cases {
        let module = Module::of_bytes(bytes).unwrap();
        let error = refused(&rig, &module).await;
        assert!(matches!(error, CompileError::Invalid(_)), "{error}");
        let public = error.public();
        assert_eq!(public.kind, ErrorKind::Invalid);
        assert!(public.message.contains(words), "{public}");
        assert!(
            public.message.len() < 700 && !public.message.contains('\n'),
            "{public}"
        );
        // A run of it is refused in the same words, and nothing is begun.
        let order = order(&module).of("ada");
        let run = order.launch.run.clone();
        let launched = rig.backend.launch(order.launch).await.map(drop);
        assert_eq!(launched.unwrap_err().to_string(), public.message);
        let attached = rig.backend.attach(run).await.map(drop);
        assert_eq!(attached.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

/// Each bound with a module that meets it, and the same module or limits without that.
#[tokio::test]
async fn each_bound_of_the_compiler_ends_it() {
    let Some(roomy) = bounded("each_bound_of_the_compiler_ends_it", |limits| {
        limits.cpu_ms = 60_000;
    }) else {
        return;
    };
    let small = module(&guests::hello());
    let prepared = roomy.backend.prepare(&small, PLAIN, None).await.unwrap();
    let many = roomy.backend.prepare(&large(), PLAIN, None).await;
    assert!(many.unwrap().code_bytes > prepared.code_bytes);
    let rig = |change: fn(&mut CompileLimits)| {
        let rig = bounded("each_bound_of_the_compiler_ends_it", change).unwrap();
        async move { rig }
    };
    let tight = rig(|limits| limits.module_bytes = 100).await;
    assert_eq!(bound(&tight, &small).await, CompileBound::Module);
    let tight = rig(|limits| limits.code_bytes = 4_096).await;
    assert_eq!(bound(&tight, &small).await, CompileBound::Code);
    let tight = rig(|limits| limits.memory_bytes = 48 << 20).await;
    assert_eq!(bound(&tight, &large()).await, CompileBound::Memory);
    tight.backend.prepare(&small, PLAIN, None).await.unwrap();
}

#[tokio::test]
async fn a_compile_bomb_is_refused_by_time() {
    let Some(rig) = bounded("a_compile_bomb_is_refused_by_time", |limits| {
        limits.cpu_ms = 1_000;
    }) else {
        return;
    };
    let bomb = slow("a");
    assert_eq!(bound(&rig, &bomb).await, CompileBound::Cpu);
    rig.backend
        .prepare(&module(&guests::hello()), PLAIN, None)
        .await
        .unwrap();
    // It is no module that is merely a little slow: four times as much is not enough either.
    let longer = bounded("longer", |limits| limits.cpu_ms = 4_000).unwrap();
    assert_eq!(bound(&longer, &bomb).await, CompileBound::Cpu);
    let wall = bounded("wall", |limits| limits.wall_ms = 500).unwrap();
    assert_eq!(bound(&wall, &bomb).await, CompileBound::Wall);
}

/// Opens the bytes of a module, and counts how often.
struct Counting(Vec<u8>, AtomicUsize);

impl ModuleSource for Counting {
    fn open(&self) -> Doing<'_, Result<File, PublicError>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        let file = tempfile(&self.0);
        Box::pin(std::future::ready(Ok(file)))
    }
}

fn tempfile(bytes: &[u8]) -> File {
    let file = rustix::fs::memfd_create("module", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(file);
    file.write_all_at(bytes, 0).unwrap();
    file
}

#[tokio::test]
async fn bytes_are_read_once_however_many_ask_and_must_be_those_that_were_named() {
    let test = "bytes_are_read_once_however_many_ask_and_must_be_those_that_were_named";
    let Some(rig) = Rig::new(test) else { return };
    let asked = |bytes: &[u8], digest: Digest| {
        let source = Arc::new(Counting(bytes.to_vec(), AtomicUsize::new(0)));
        (Module::asked(digest, source.clone()), source)
    };
    let hello = wat::parse_str(guests::hello()).unwrap();
    let (good, opened) = asked(&hello, Digest::of(&hello));
    let mut all = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (backend, module) = (rig.backend.clone(), good.clone());
        all.spawn(async move {
            let tenant = tenant(&format!("t{number}"));
            backend
                .prepare(&module, PLAIN, Some(&tenant))
                .await
                .unwrap()
        });
    }
    let origins: Vec<Origin> = all
        .join_all()
        .await
        .into_iter()
        .map(|done| done.origin)
        .collect();
    assert_eq!(opened.1.load(Ordering::SeqCst), 1, "{origins:?}");
    assert_eq!(rig.backend.counts().compiled, 1);
    let (bad, opened) = asked(b"\0asm\x01\0\0\0", Digest::of(b"something else"));
    let error = refused(&rig, &bad).await;
    assert!(matches!(error, CompileError::Changed(_)), "{error}");
    assert!(refused(&rig, &bad).await.to_string().contains("digest"));
    assert_eq!(
        opened.1.load(Ordering::SeqCst),
        2,
        "another time it may be right"
    );
    let (broken, opened) = asked(b"\0asm\x01\0\0\0\xff", Digest::of(b"\0asm\x01\0\0\0\xff"));
    for _ in 0..3 {
        assert!(matches!(
            refused(&rig, &broken).await,
            CompileError::Invalid(_)
        ));
    }
    assert_eq!(opened.1.load(Ordering::SeqCst), 1, "it stays what it is");
}

/// Changes a bit in the middle of every piece of code that is kept.
fn alter_code(folder: &Path) {
    let mut altered = 0;
    for entry in fs::read_dir(folder.join("code")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "code") {
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
            altered += 1;
        }
    }
    assert!(altered > 0, "no code is kept");
}

#[tokio::test]
async fn what_one_process_checked_the_next_takes_from_the_supervisor() {
    let test = "what_one_process_checked_the_next_takes_from_the_supervisor";
    let lending = WasmBounds {
        lend: true,
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded(test, &lending) else {
        return;
    };
    let folder = rig.own.directory.path().join("state/wasm");
    let hello = module(&guests::hello());
    let (exec, sandbox) = (order(&hello).launch.exec, SandboxSpec::default());
    let single = async |backend: &leasehold_backend::wasm::WasmBackend| {
        let made = backend.single(&exec, &hello, None, &sandbox).await;
        made.unwrap().1.origin
    };
    assert_eq!(single(&rig.backend).await, Origin::Compiler);
    // The disk has other code by now, which nobody reads.
    alter_code(&folder);
    let next = rig.successor_with(folder.clone(), &lending);
    assert_eq!(single(&next).await, Origin::Memory);
    assert_eq!(next.counts().code_refused, 0);
    let execution = next.launch(order(&hello).launch).await.unwrap();
    assert_eq!(super::finish(execution).await.stdout, b"hello\n");
    // Who takes nothing from there reads it, and does not believe it.
    let other = rig.successor(folder);
    assert_eq!(single(&other).await, Origin::Compiler);
    assert_eq!(other.counts().code_refused, 1);
}

#[tokio::test]
async fn code_outlives_its_process_and_is_compiled_again_where_it_was_changed() {
    let test = "code_outlives_its_process_and_is_compiled_again_where_it_was_changed";
    let Some(rig) = Rig::new(test) else { return };
    let hello = module(&guests::hello());
    let origin = async |backend: &leasehold_backend::wasm::WasmBackend| {
        backend.prepare(&hello, PLAIN, None).await.unwrap().origin
    };
    assert_eq!(origin(&rig.backend).await, Origin::Compiler);
    assert_eq!(origin(&rig.backend).await, Origin::Memory);
    let folder = rig.own.directory.path().join("state/wasm");
    let later = rig.successor(folder.clone());
    assert_eq!(origin(&later).await, Origin::Disk);
    let metered = later.prepare(&hello, Flavour::Metered, None).await.unwrap();
    assert_eq!(metered.origin, Origin::Compiler);
    alter_code(&folder);
    let last = rig.successor(folder);
    assert_eq!(origin(&last).await, Origin::Compiler);
    let counts = last.counts();
    assert_eq!(counts.code_refused, 1);
    assert!(counts.trouble.unwrap().contains("not what was compiled"));
    let execution = last.launch(order(&hello).of("ada").launch).await.unwrap();
    assert_eq!(super::finish(execution).await.stdout, b"hello\n");
}

#[tokio::test]
async fn a_tenants_bombs_hold_up_nobody_else() {
    let mut bounds = WasmBounds {
        compiles: 2,
        compiles_waiting: 2,
        ..WasmBounds::default()
    };
    bounds.compile.cpu_ms = 3_000;
    let Some(rig) = Rig::bounded("a_tenants_bombs_hold_up_nobody_else", &bounds) else {
        return;
    };
    let hello = module(&guests::hello());
    assert_eq!(
        *rig.run(order(&hello).of("eve")).await.end(),
        EndReason::Completed
    );
    let bombs = [slow("a"), slow("b")];
    let eve = tenant("eve");
    let mut compiling = tokio::task::JoinSet::new();
    for bomb in bombs {
        let (backend, eve) = (rig.backend.clone(), eve.clone());
        compiling.spawn(async move { backend.prepare(&bomb, PLAIN, Some(&eve)).await });
    }
    tokio::task::yield_now().await;
    let third = module(&guests::exits(3));
    let busy = rig
        .backend
        .prepare(&third, PLAIN, Some(&eve))
        .await
        .unwrap_err();
    assert!(matches!(busy, CompileError::Busy { .. }), "{busy}");
    assert_eq!(busy.public().kind, ErrorKind::Quota);
    // Somebody else's module is compiled meanwhile, and what was compiled runs.
    let other = rig
        .backend
        .prepare(&third, PLAIN, Some(&tenant("bob")))
        .await
        .unwrap();
    assert_eq!(other.origin, Origin::Compiler);
    assert_eq!(rig.run(order(&hello).of("eve")).await.stdout, b"hello\n");
    assert!(
        compiling.try_join_next().is_none(),
        "a bomb was over already"
    );
    while let Some(bomb) = compiling.join_next().await {
        let error = bomb.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                CompileError::Limit {
                    bound: CompileBound::Cpu,
                    ..
                }
            ),
            "{error}"
        );
    }
    rig.backend
        .prepare(&module(&guests::exits(4)), PLAIN, Some(&eve))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tenant_that_asks_first_for_what_many_want_holds_up_nobody() {
    let mut bounds = WasmBounds {
        compiles: 2,
        ..WasmBounds::default()
    };
    // Far longer than anything else here takes.
    bounds.compile.cpu_ms = 60_000;
    let test = "a_tenant_that_asks_first_for_what_many_want_holds_up_nobody";
    let Some(rig) = Rig::bounded(test, &bounds) else {
        return;
    };
    let wanted = module(&guests::hello());
    let mut eves = tokio::task::JoinSet::new();
    // What everybody wants, behind what takes long.
    for module in [slow("a"), slow("b"), wanted.clone()] {
        let (backend, eve) = (rig.backend.clone(), tenant("eve"));
        eves.spawn(async move { backend.prepare(&module, PLAIN, Some(&eve)).await.is_ok() });
        // Each looks first whether its code is kept, beside the others: her turn is to be the first bomb's.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let bob = tenant("bob");
    let prepared = rig.backend.prepare(&wanted, PLAIN, Some(&bob));
    assert_eq!(prepared.await.unwrap().origin, Origin::Compiler);
    assert!(eves.try_join_next().is_none(), "a bomb was over already");
    // She has it from him, and does not wait for her own turn.
    let eve = tenant("eve");
    let again = rig.backend.prepare(&wanted, PLAIN, Some(&eve)).await;
    assert_eq!(again.unwrap().origin, Origin::Memory);
    assert_eq!(rig.backend.counts().compiled, 1);
}
