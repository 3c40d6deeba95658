//! The promises of the queue, in virtual time, over many made-up courses of events.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_core::error::ErrorKind;
use leasehold_core::id::RunId;
use leasehold_core::name::Name;

use super::{Bounds, FairQueue, Full, Ticket, WaitedFor};
use crate::plan::Share;

/// A row of numbers that looks random and is the same each time (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn share(weight: u32, running: u32) -> Share {
    Share {
        weight,
        tenant_running_max: running,
        tenant_queued_max: 100_000,
        tool_running_max: None,
        per_minute_max: u32::MAX,
        tenant_request_bytes_max: u64::MAX,
    }
}

fn run(number: u64) -> RunId {
    let mut entropy = [0; 13];
    entropy[..8].copy_from_slice(&number.to_be_bytes());
    RunId::from_entropy(&entropy)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const LONG: Duration = Duration::from_secs(1_000_000);

/// A host in virtual time.
struct World {
    queue: FairQueue,
    now: Duration,
    numbers: u64,
    /// What each run takes, and whose it is.
    runs: HashMap<RunId, (Name, Duration)>,
    ends: BTreeMap<(Duration, u64), RunId>,
    since: HashMap<RunId, Duration>,
    /// Waits of runs that got a computer, by tenant.
    waits: HashMap<Name, Vec<Duration>>,
    /// Time that computers were held, by tenant.
    held: HashMap<Name, Duration>,
}

impl World {
    fn new(running_max: u32) -> Self {
        Self::with(Bounds::new(running_max, 1_000_000))
    }

    fn with(bounds: Bounds) -> Self {
        Self {
            queue: FairQueue::new(bounds),
            now: Duration::ZERO,
            numbers: 0,
            runs: HashMap::new(),
            ends: BTreeMap::new(),
            since: HashMap::new(),
            waits: HashMap::new(),
            held: HashMap::new(),
        }
    }

    fn ask(&mut self, tenant: &str, share: &Share, priority: i32, takes: Duration) -> RunId {
        let tenant = name(tenant);
        self.queue.reserve(&tenant, share, 0, self.now).unwrap();
        self.numbers += 1;
        let id = run(self.numbers);
        self.runs.insert(id.clone(), (tenant.clone(), takes));
        self.since.insert(id.clone(), self.now);
        self.queue.push(Ticket {
            run: id.clone(),
            tenant,
            share: share.clone(),
            priority,
            since: self.now,
            until: LONG,
            bytes: 0,
        });
        id
    }

    fn start_all(&mut self) -> Vec<RunId> {
        let mut started = Vec::new();
        while let Some(id) = self.queue.next(self.now) {
            let (tenant, takes) = self.runs[&id].clone();
            self.numbers += 1;
            self.ends
                .insert((self.now + takes, self.numbers), id.clone());
            let wait = self.now - self.since[&id];
            self.waits.entry(tenant.clone()).or_default().push(wait);
            *self.held.entry(tenant).or_default() += takes;
            started.push(id);
        }
        started
    }

    /// Goes to the next end, at most to `until`. Says whether something ended.
    fn step(&mut self, until: Duration) -> bool {
        match self
            .ends
            .first_key_value()
            .map(|(key, id)| (*key, id.clone()))
        {
            Some((key, id)) if key.0 <= until => {
                self.now = self.now.max(key.0);
                self.ends.remove(&key);
                self.queue.finish(&id, self.now);
                true
            }
            _ => {
                self.now = until;
                false
            }
        }
    }

    fn p95(&self, tenant: &str) -> Duration {
        let mut waits = self.waits[&name(tenant)].clone();
        waits.sort();
        waits[waits.len() * 95 / 100]
    }
}

#[test]
fn computers_are_shared_by_weight_whatever_a_run_takes() {
    for seed in 1..=8_u64 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        // A few computers, none of them spare, and then so many that each tenant is due more than one.
        let (few, most) = if seed % 2 == 0 { (2, 6) } else { (24, 16) };
        let computers = u32::try_from(few + dice.below(most)).unwrap();
        let mut world = World::new(computers);
        // Each tenant has another weight and runs of another length; all have always enough.
        let tenants: Vec<(String, Share, u64)> = (0..4)
            .map(|at| {
                let weight = u32::try_from(1 + dice.below(8)).unwrap();
                (format!("t{at}"), share(weight, 1_000), 20 + dice.below(400))
            })
            .collect();
        let end = Duration::from_secs(if seed % 2 == 0 { 600 } else { 100 });
        for (tenant, share, takes) in &tenants {
            for _ in 0..3.max(computers) {
                world.ask(tenant, share, 0, ms(*takes));
            }
        }
        while world.now < end {
            for id in world.start_all() {
                let of = world.runs[&id].0.clone();
                let (tenant, share, takes) = tenants
                    .iter()
                    .find(|(tenant, ..)| *tenant == of.as_str())
                    .unwrap();
                let takes = takes / 2 + dice.below(*takes);
                world.ask(tenant, share, 0, ms(takes));
            }
            world.step(end);
        }
        let total: f64 = world.held.values().map(Duration::as_secs_f64).sum();
        let weights: f64 = tenants
            .iter()
            .map(|(_, share, _)| f64::from(share.weight))
            .sum();
        for (tenant, share, takes) in &tenants {
            let got = world.held[&name(tenant)].as_secs_f64() / total;
            let due = f64::from(share.weight) / weights;
            assert!(
                (got / due - 1.0).abs() < 0.05,
                "seed {seed}: {tenant} (weight {}, {takes} ms) got {got:.3}, due {due:.3}",
                share.weight
            );
        }
    }
}

#[test]
fn p34_a_tenant_with_a_thousand_waiting_runs_does_not_move_anothers_p95() {
    let takes = ms(100);
    let quiet = |noisy: bool| {
        let mut world = World::new(8);
        let plain = share(1, 8);
        if noisy {
            for _ in 0..1_000 {
                world.ask("noisy", &plain, 1_000, takes);
            }
        }
        for second in 0..60 {
            let due = Duration::from_millis(137 + second * 1_000);
            loop {
                world.start_all();
                if !world.step(due) {
                    break;
                }
                let few = |(tenant, queued, _): &(Name, u32, u32)| {
                    tenant.as_str() == "noisy" && *queued < 1_000
                };
                if noisy && world.queue.depths().iter().any(few) {
                    for _ in 0..100 {
                        world.ask("noisy", &plain, 1_000, takes);
                    }
                }
            }
            world.ask("quiet", &plain, 0, takes);
            world.start_all();
        }
        while world.step(LONG) {
            world.start_all();
            if world
                .waits
                .get(&name("quiet"))
                .is_some_and(|waits| waits.len() == 60)
            {
                break;
            }
        }
        world.p95("quiet")
    };
    assert_eq!(quiet(false), Duration::ZERO);
    // The bound: the time until the next of the other's runs ends.
    assert!(quiet(true) <= takes, "{:?}", quiet(true));
}

/// One tenant's runs of an hour, as many as it likes, and others that come then with short ones.
#[test]
fn a_tenant_with_long_runs_leaves_room_for_those_that_hold_none() {
    let hour = Duration::from_secs(3_600);
    let waited = |bounds: Bounds, others: u32| {
        let mut world = World::with(bounds);
        for _ in 0..200 {
            world.ask("long", &share(1, 1_000), 1_000, hour);
        }
        let flood = u32::try_from(world.start_all().len()).unwrap();
        assert_eq!(flood, bounds.running_max - bounds.spare);
        // Again and again, so that what a tenant used before is not held against it.
        for second in 1..=60 {
            let due = Duration::from_secs(second);
            while world.step(due) {
                world.start_all();
            }
            for other in 0..others {
                world.ask(&format!("short{other}"), &share(1, 1_000), 0, ms(300));
            }
            world.start_all();
        }
        while world.waits.values().map(Vec::len).sum::<usize>() < 200 {
            assert!(world.step(LONG));
            world.start_all();
        }
        let all = |other: u32| world.waits[&name(&format!("short{other}"))].clone();
        (0..others).flat_map(all).max().unwrap()
    };
    let bounds = Bounds::new(32, 1_000_000);
    assert_eq!(bounds.spare, 4);
    // The bound: nobody waits where no more tenants come than there are spare places, ...
    assert_eq!(waited(bounds, 4), Duration::ZERO);
    // ... and with more of them only for the runs of each other.
    assert!(waited(bounds, 12) <= ms(600));
    // The control: without spare places they wait for the long runs.
    let none = Bounds { spare: 0, ..bounds };
    assert!(waited(none, 1) >= hour - Duration::from_secs(60));
}

/// Where there is one tenant it has every computer; from the second on, the last few are kept again.
#[test]
fn a_tenant_that_is_alone_has_every_computer() {
    let bounds = Bounds::new(32, 1_000);
    let begun = |alone: bool| {
        let mut world = World::with(bounds);
        world.queue.set_alone(alone);
        for _ in 0..40 {
            world.ask("only", &share(1, 1_000), 0, LONG);
        }
        let begun = world.start_all().len();
        world.queue.set_alone(false);
        world.ask("other", &share(1, 1_000), 0, LONG);
        (begun, world.start_all().len())
    };
    assert_eq!(begun(true), (32, 0));
    // The control: as one of several it leaves the last eighth, and another has it at once.
    assert_eq!(begun(false), (28, 1));
}

#[test]
fn the_bytes_of_waiting_and_running_requests_are_bounded_and_come_free_at_the_end() {
    let mut queue = FairQueue::new(Bounds::new(1, 100));
    let (a, b) = (name("a"), name("b"));
    let narrow = Share {
        tenant_request_bytes_max: 100,
        ..share(1, 9)
    };
    let ask = |queue: &mut FairQueue, number: u64| {
        queue.reserve(&a, &narrow, 40, ms(0))?;
        queue.push(Ticket {
            run: run(number),
            tenant: a.clone(),
            share: narrow.clone(),
            priority: 0,
            since: ms(0),
            until: LONG,
            bytes: 40,
        });
        Ok::<_, Full>(())
    };
    ask(&mut queue, 1).unwrap();
    ask(&mut queue, 2).unwrap();
    assert_eq!(queue.next(ms(0)), Some(run(1)));
    let full = ask(&mut queue, 3).unwrap_err();
    assert!(matches!(full, Full::Bytes(80, 100, _)), "{full:?}");
    let told = full.public();
    assert_eq!(told.kind, ErrorKind::Quota);
    assert!(told.message.contains("share.request_bytes") && told.retry_after_ms.is_some());
    // One that never fits is not told to come again.
    let never = queue.reserve(&a, &narrow, 101, ms(0)).unwrap_err().public();
    assert_eq!(
        (never.kind, never.retry_after_ms),
        (ErrorKind::Invalid, None)
    );
    // Less fits, and another tenant's are counted apart.
    assert_eq!(queue.reserve(&a, &narrow, 20, ms(0)), Ok(()));
    queue.give_back(&a, 20, ms(0));
    assert_eq!(queue.reserve(&b, &narrow, 100, ms(0)), Ok(()));
    // The end of one that ran, and of one that waited, makes room.
    queue.finish(&run(1), ms(1));
    ask(&mut queue, 4).unwrap();
    assert!(ask(&mut queue, 5).is_err());
    assert!(queue.remove(&run(2), ms(1)));
    ask(&mut queue, 6).unwrap();
    queue.force(&a, 40);
    assert!(ask(&mut queue, 7).is_err(), "what was there before counts");
}

#[test]
fn no_cap_is_ever_exceeded_and_nobody_starves() {
    for seed in 1..=20_u64 {
        let mut dice = Dice(seed * 0x51_7cc1);
        let host = u32::try_from(1 + dice.below(10)).unwrap();
        let mut world = World::new(host);
        let mut caps: HashMap<Name, u32> = HashMap::new();
        let mut tools: HashMap<(Name, Name), u32> = HashMap::new();
        let mut of_tool: HashMap<RunId, Option<Name>> = HashMap::new();
        let mut waiting: Vec<RunId> = Vec::new();
        for _ in 0..600 {
            match dice.below(4) {
                0 | 1 => {
                    let at = dice.below(5);
                    let tenant = format!("t{at}");
                    let cap = u32::try_from(1 + at * 2).unwrap();
                    let mut share = share(1 + u32::try_from(at).unwrap(), cap);
                    let tool = (dice.below(2) == 0).then(|| name("slow.tool"));
                    share.tool_running_max = tool.clone().map(|tool| (tool, 2));
                    caps.insert(name(&tenant), cap);
                    tools.insert((name(&tenant), name("slow.tool")), 2);
                    let priority = i32::try_from(dice.below(7)).unwrap() - 3;
                    let takes = ms(1 + dice.below(300));
                    let id = world.ask(&tenant, &share, priority, takes);
                    of_tool.insert(id.clone(), tool);
                    waiting.push(id);
                }
                2 if !waiting.is_empty() => {
                    let at = usize::try_from(dice.below(waiting.len() as u64)).unwrap();
                    let id = waiting.swap_remove(at);
                    world.queue.remove(&id, world.now);
                    assert!(!world.queue.remove(&id, world.now), "taken out twice");
                }
                _ => {
                    let next = world.now + ms(dice.below(100));
                    world.step(next);
                }
            }
            let started = world.start_all();
            waiting.retain(|id| !started.contains(id));
            let mut running: HashMap<Name, u32> = HashMap::new();
            let mut of: HashMap<(Name, Name), u32> = HashMap::new();
            for id in world.ends.values() {
                let tenant = world.runs[id].0.clone();
                *running.entry(tenant.clone()).or_default() += 1;
                if let Some(tool) = &of_tool[id] {
                    *of.entry((tenant, tool.clone())).or_default() += 1;
                }
            }
            assert!(running.values().sum::<u32>() <= host, "seed {seed}");
            assert!(
                running.iter().all(|(tenant, now)| *now <= caps[tenant]),
                "seed {seed}"
            );
            assert!(
                of.iter().all(|(key, now)| *now <= tools[key]),
                "seed {seed}"
            );
        }
        while world.step(LONG) {
            let started = world.start_all();
            waiting.retain(|id| !started.contains(id));
        }
        assert!(waiting.is_empty(), "seed {seed}: {} starved", waiting.len());
        assert_eq!(world.queue.held(), 0);
        let empty = |(_, queued, running): &(Name, u32, u32)| queued + running == 0;
        assert!(world.queue.depths().iter().all(empty));
    }
}

#[test]
fn a_run_of_low_priority_is_before_those_that_came_much_later() {
    let mut world = World::new(1);
    let plain = share(1, 10);
    world.ask("a", &plain, 0, ms(1));
    world.start_all();
    let low = world.ask("a", &plain, -3, ms(1));
    let high = world.ask("a", &plain, 0, ms(1));
    world.now = Duration::from_secs(31);
    let later = world.ask("a", &plain, 0, ms(1));
    let mut order = Vec::new();
    while world.step(LONG) {
        order.extend(world.start_all());
    }
    assert_eq!(order, [high, low, later]);
}

#[test]
fn a_full_queue_and_a_used_up_rate_say_so_and_when() {
    let mut queue = FairQueue::new(Bounds::new(2, 3));
    let narrow = Share {
        tenant_queued_max: 1,
        tenant_running_max: 1,
        per_minute_max: 3,
        ..share(1, 1)
    };
    let (a, b) = (name("a"), name("b"));
    assert_eq!(queue.reserve(&a, &narrow, 0, ms(0)), Ok(()));
    assert_eq!(queue.reserve(&a, &narrow, 0, ms(0)), Ok(()));
    let full = queue.reserve(&a, &narrow, 0, ms(0)).unwrap_err();
    assert!(matches!(full, Full::Tenant(1, _)), "{full:?}");
    let told = full.public();
    assert!(
        told.retry_after_ms.is_some_and(|after| after >= 1_000),
        "{told:?}"
    );
    queue.give_back(&a, 0, ms(0));
    queue.give_back(&a, 0, ms(0));
    for _ in 0..3 {
        queue.reserve(&a, &narrow, 0, ms(0)).unwrap();
        queue.push(Ticket {
            run: run(7),
            tenant: a.clone(),
            share: narrow.clone(),
            priority: 0,
            since: ms(0),
            until: ms(500),
            bytes: 0,
        });
        assert!(queue.remove(&run(7), ms(0)));
    }
    assert!(matches!(
        queue.reserve(&a, &narrow, 0, ms(0)),
        Err(Full::Rate(3, _))
    ));
    let wide = share(1, 9);
    for _ in 0..5 {
        assert_eq!(queue.reserve(&b, &wide, 0, ms(0)), Ok(()));
    }
    assert!(matches!(
        queue.reserve(&b, &wide, 0, ms(0)),
        Err(Full::Host(3, _))
    ));
}

#[test]
fn who_waited_too_long_is_told_for_what() {
    let mut queue = FairQueue::new(Bounds::new(2, 100));
    let tool = name("slow.tool");
    let ask = |queue: &mut FairQueue, number, tenant: &str, share: &Share| {
        queue.reserve(&name(tenant), share, 0, ms(0)).unwrap();
        queue.push(Ticket {
            run: run(number),
            tenant: name(tenant),
            share: share.clone(),
            priority: 0,
            since: ms(0),
            until: ms(500),
            bytes: 0,
        });
    };
    let mut of_tool = share(1, 9);
    of_tool.tool_running_max = Some((tool.clone(), 1));
    ask(&mut queue, 1, "a", &of_tool);
    assert_eq!(queue.next(ms(0)), Some(run(1)));
    ask(&mut queue, 2, "a", &of_tool);
    assert_eq!(queue.next(ms(0)), None, "its tool is at its cap");
    ask(&mut queue, 3, "b", &share(1, 1));
    assert_eq!(queue.next(ms(0)), Some(run(3)));
    ask(&mut queue, 4, "b", &share(1, 1));
    ask(&mut queue, 5, "c", &share(1, 1));
    assert!(queue.expire(ms(499)).is_empty());
    let mut over = queue.expire(ms(500));
    over.sort_by(|left, right| left.0.cmp(&right.0));
    let want = [
        (run(2), WaitedFor::Tool(tool, 1)),
        (run(4), WaitedFor::Tenant(1)),
        (run(5), WaitedFor::Computer(2)),
    ];
    assert_eq!(over, want);
    assert!(queue.expire(LONG).is_empty());
}
