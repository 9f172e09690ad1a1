//! A relay is killed at one point after another, told by events: a message of PostgreSQL's protocol or of HTTP is held back
//! by a proxy, the process gets SIGKILL, and only then goes the world on. A second process then runs to the end.

use std::{
    collections::{HashMap, HashSet},
    net::{Ipv4Addr, SocketAddr},
    time::Instant,
};

use outbox_operator::sandbox::script_url;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    census::{self, Census, End, Intent},
    database_wire,
    http_wire::{Begun, Wire},
    report,
    support::{PATIENCE, Relay, World},
    trap::{Act, Event, Point, Trap},
};

/// Rows of each run.
const ROWS: usize = 200;
/// Requests in flight at most.
const CONCURRENCY: usize = 8;
/// Runs at one time: they mostly wait for leases.
const AT_ONCE: usize = 4;

/// Rows of all kinds for a receiver that deduplicates. `slow` is another destination, which `429` holds.
fn mixed(receiver: SocketAddr, slow: SocketAddr) -> Vec<Intent> {
    const KINDS: [(&str, End); 20] = [
        ("201", End::Succeeded),
        ("204", End::Succeeded),
        ("500,201", End::Succeeded),
        ("201", End::Succeeded),
        ("422", End::Dead("rejected")),
        ("reset,201", End::Succeeded),
        ("big:100000", End::Succeeded),
        ("409:1,201", End::Succeeded),
        ("close,201", End::Succeeded),
        ("301", End::Dead("redirected")),
        ("garbage,201", End::Succeeded),
        ("cut", End::Succeeded),
        ("401", End::Dead("unauthorized")),
        ("201", End::Succeeded),
        ("500", End::Dead("exhausted")),
        ("404", End::Dead("rejected")),
        ("done-500", End::Succeeded),
        ("done-reset", End::Succeeded),
        ("409", End::Dead("conflict")),
        ("bye", End::Succeeded),
    ];
    let special = [
        ("hang,201", receiver, End::Succeeded),
        ("lost", receiver, End::Succeeded),
        ("hang,201", receiver, End::Succeeded),
        ("lost", receiver, End::Succeeded),
        ("429:1,201", slow, End::Succeeded),
        ("429,201", slow, End::Succeeded),
    ];
    let odd = [
        ("ftp://127.0.0.1/", End::Dead("invalid")),
        ("http://169.254.169.254/", End::Dead("blocked")),
        ("http://127.0.0.1:1/", End::Dead("exhausted")),
    ];
    intents(
        special
            .into_iter()
            .map(|(script, at, end)| (script_url(at, script), end))
            .chain(odd.map(|(endpoint, end)| (endpoint.to_owned(), end)))
            .chain(KINDS.iter().cycle().map(|(script, end)| (script_url(receiver, script), *end))),
    )
}

/// Rows for a receiver that does each request anew. None of them is ever to be sent again, whatever comes back.
fn once_only(receiver: SocketAddr) -> Vec<Intent> {
    const KINDS: [(&str, End); 20] = [
        ("201", End::Succeeded),
        ("204", End::Succeeded),
        ("500", End::Any),
        ("201", End::Succeeded),
        ("422", End::Dead("rejected")),
        ("reset", End::Any),
        ("201", End::Succeeded),
        ("close", End::Any),
        ("201", End::Succeeded),
        ("301", End::Dead("redirected")),
        ("garbage", End::Any),
        ("cut", End::Any),
        ("401", End::Dead("unauthorized")),
        ("201", End::Succeeded),
        ("404", End::Dead("rejected")),
        ("done-500", End::Any),
        ("done-reset", End::Any),
        ("409", End::Dead("conflict")),
        ("bye", End::Succeeded),
        ("201", End::Succeeded),
    ];
    // Of a row that succeeds where nothing deduplicates, a kill leaves the outcome to a person.
    let end = |end: End| if end == End::Succeeded { End::Any } else { end };
    let slow = ["hang", "lost", "hang", "lost"].map(|script| (script, End::Any));
    intents(
        slow.iter()
            .chain(KINDS.iter().cycle())
            .map(|(script, expected)| (format!("{}?dedup=off", script_url(receiver, script)), end(*expected))),
    )
}

fn intents(rows: impl Iterator<Item = (String, End)>) -> Vec<Intent> {
    let intent = |(number, (endpoint, end))| Intent {
        key: format!("row-{number:03}"),
        endpoint,
        payload: census::payload(number),
        end,
    };
    rows.take(ROWS).enumerate().map(intent).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Enforced,
    None,
}

/// What one kill led to.
struct Outcome {
    point: Point,
    /// Rows that had ended when it came.
    ended: usize,
    /// Rows that the process held.
    in_hand: usize,
    /// Those of them whose request had begun.
    begun: usize,
    /// Rows sent again because of the kill.
    repeated: usize,
    /// Second sends of a receiver that does not deduplicate.
    second_sends: usize,
    census: Census,
}

async fn kill_at(point: Point, receiver: Receiver) -> Outcome {
    let mut world = World::new().await;
    let other = world.receiver.listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let trap = Trap::at(point);
    let wire = Wire::new(trap.clone());
    let first = wire.listen(world.receiver.addr()).await;
    let intents = match receiver {
        Receiver::Enforced => mixed(first, wire.listen(other).await),
        Receiver::None => once_only(first),
    };
    census::insert(&world.pool, &intents).await;
    let inserted = census::rows(&world.pool).await;

    let mut url = url::Url::parse(&world.url).unwrap();
    let server = (Ipv4Addr::LOCALHOST, url.port().unwrap()).into();
    url.set_port(Some(database_wire::listen(server, trap.clone()).await.port())).unwrap();
    let idempotency = match receiver {
        Receiver::Enforced => "idempotency: {receiver: Enforced}",
        Receiver::None => "idempotency: {receiver: None}",
    };
    let file = world.documents(
        &format!("concurrency: {CONCURRENCY}\nleaseDuration: 3s\nmigrations: Manual"),
        &format!(
            "timeouts: {{connect: 500ms, total: 1s}}\nretry: {{base: 20ms, cap: 100ms, maxAttempts: 5}}\n{idempotency}"
        ),
    );

    let killed = start(url.as_str(), &file).await;
    trap.sprung(PATIENCE).await;
    killed.signal("KILL");
    killed.wait(PATIENCE).await;
    trap.disarm();
    wire.next_run().await;
    world
        .wait_for(
            "the dead process's sessions are gone",
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox relay'",
        )
        .await;
    let at_kill = census::rows(&world.pool).await;
    let before = wire.begun();

    let second = start(url.as_str(), &file).await;
    world.all_ended().await;
    assert_eq!(second.stop().await.code(), Some(0), "{point}");
    let after = census::rows(&world.pool).await;
    let later: Vec<Begun> = wire.begun().into_iter().skip(before.len()).collect();
    let census = Census::take(&intents, &inserted, &after, &world.receiver);

    let begun: HashSet<(&str, i32)> = before.iter().map(|one| (one.key.as_str(), one.attempt)).collect();
    let again: HashSet<&str> = later.iter().map(|one| one.key.as_str()).collect();
    let held: Vec<_> = at_kill.values().filter(|row| row.status == "in_flight").collect();
    let held_begun = held.iter().filter(|row| begun.contains(&(row.key.as_str(), row.attempts)));
    let repeated = held_begun.clone().filter(|row| again.contains(row.key.as_str())).count();
    // What had ended stays as it was, and nothing more is sent of it.
    for row in at_kill.values().filter(|row| row.has_ended()) {
        assert!(!again.contains(row.key.as_str()), "{point}: {row:?} had ended and was sent again");
        assert_eq!(Some(row), after.get(&row.key), "{point}: a row that had ended was changed");
    }
    // An attempt is one request, over both processes; an attempt that was a wait is given back and made again.
    let waits = |key: &str| intents.iter().any(|intent| intent.key == key && intent.endpoint.contains(":1,201"));
    let mut sends: HashMap<(String, i32), usize> = HashMap::new();
    for one in before.iter().chain(&later) {
        *sends.entry((one.key.clone(), one.attempt)).or_default() += 1;
    }
    for ((key, attempt), count) in &sends {
        assert!(*count == 1 || waits(key), "{point}: attempt {attempt} of {key} was sent {count} times");
    }
    let mut requests: HashMap<&str, usize> = HashMap::new();
    for one in before.iter().chain(&later) {
        *requests.entry(one.key.as_str()).or_default() += 1;
    }
    Outcome {
        point,
        ended: at_kill.values().filter(|row| row.has_ended()).count(),
        in_hand: held.len(),
        begun: held_begun.count(),
        repeated,
        second_sends: requests.values().filter(|count| **count > 1).count(),
        census,
    }
}

/// Starts a relay without blocking the proxies' threads.
async fn start(url: &str, file: &std::path::Path) -> Relay {
    let (url, file) = (url.to_owned(), file.to_owned());
    tokio::task::spawn_blocking(move || Relay::start(&url, &file, &[])).await.unwrap()
}

/// The points: each kind of event at each of these times.
fn points(kinds: &[(Event, &[usize])]) -> Vec<Point> {
    kinds.iter().flat_map(|(event, numbers)| numbers.iter().map(|&number| Point { event: *event, number })).collect()
}

fn long_points(receiver: Receiver) -> Vec<Point> {
    use Event::{
        AfterCommit, AnswerReady, Answered, BeforeCommit, Begins, DatabaseConnects, Executes, HalfAnswer, HalfBody,
        HeadRead, ReceiverAccepts,
    };
    // Where nothing is sent again there are fewer requests, and fewer answers still.
    let (last, answers) = match receiver {
        Receiver::Enforced => (250, 220),
        Receiver::None => (180, 150),
    };
    points(&[
        (DatabaseConnects, &[1, 2]),
        (Begins, &[1, 3, 10, 30]),
        (Executes, &[1, 5, 12, 25, 40, 60]),
        (BeforeCommit(Act::Claim), &[1, 2, 4, 8, 12, 16]),
        (AfterCommit(Act::Claim), &[1, 2, 4, 8, 12, 16]),
        (BeforeCommit(Act::Settle), &[1, 2, 4, 8, 12, 16]),
        (AfterCommit(Act::Settle), &[1, 2, 4, 8, 12, 16]),
        (ReceiverAccepts, &[1, 4, 10, 20]),
        (HeadRead, &[1, 9, 50, 120, last]),
        (HalfBody, &[1, 9, 50, 120, last]),
        (AnswerReady, &[1, 9, 50, 120, answers]),
        (HalfAnswer, &[1, 9, 50, 120, answers]),
        (Answered, &[1, 9, 50, 120, answers]),
    ])
}

fn short_points(receiver: Receiver) -> Vec<Point> {
    use Event::{
        AfterCommit, AnswerReady, Answered, BeforeCommit, DatabaseConnects, HalfAnswer, HalfBody, HeadRead,
        ReceiverAccepts,
    };
    match receiver {
        Receiver::Enforced => points(&[
            (DatabaseConnects, &[1]),
            (BeforeCommit(Act::Claim), &[1, 8]),
            (AfterCommit(Act::Claim), &[1, 8]),
            (BeforeCommit(Act::Settle), &[1, 8]),
            (AfterCommit(Act::Settle), &[4]),
            (ReceiverAccepts, &[4]),
            (HeadRead, &[50]),
            (HalfBody, &[120]),
            (AnswerReady, &[9, 170]),
            (HalfAnswer, &[50]),
            (Answered, &[120]),
        ]),
        Receiver::None => points(&[
            (AfterCommit(Act::Claim), &[4]),
            (BeforeCommit(Act::Settle), &[4]),
            (HeadRead, &[50]),
            (HalfBody, &[9]),
            (AnswerReady, &[120]),
        ]),
    }
}

async fn sweep(receiver: Receiver) -> Vec<Outcome> {
    let points = if report::full() { long_points(receiver) } else { short_points(receiver) };
    let room = std::sync::Arc::new(Semaphore::new(AT_ONCE));
    let mut runs = JoinSet::new();
    for (number, point) in points.into_iter().enumerate() {
        let room = std::sync::Arc::clone(&room);
        runs.spawn(async move {
            let _room = room.acquire().await.unwrap();
            (number, kill_at(point, receiver).await)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = runs.join_next().await {
        outcomes.push(outcome.unwrap());
    }
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn show(title: &str, outcomes: &[Outcome], started: Instant, receiver: Receiver) {
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
    let repeated = match receiver {
        Receiver::Enforced => "sent again",
        Receiver::None => "second sends",
    };
    let row = |outcome: &Outcome| {
        let repeated = match receiver {
            Receiver::Enforced => outcome.repeated,
            Receiver::None => outcome.second_sends,
        };
        let numbers =
            [outcome.ended, outcome.in_hand, outcome.begun, repeated, outcome.census.requests, outcome.census.effects];
        let wrong = [outcome.census.lost.len(), outcome.census.doubled.len(), outcome.census.changed.len()];
        let mut cells = vec![outcome.point.to_string()];
        cells.extend(numbers.iter().chain(&wrong).map(ToString::to_string));
        cells
    };
    let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
    let head = ["killed", "ended", "in hand", "begun", repeated, "requests", "effects", "lost", "doubled", "changed"];
    report::print(&format!("\n{title}\n\n{}", report::table(&head, &rows)));
    report::print(&format!(
        "\n{} kills of {ROWS} rows each in {:.0} s: {} rows in hand, {} requests begun, {} sent again (at most {} for one kill), \
         {} second sends where they are forbidden, {} lost, {} doubled, {} keys or bodies changed",
        outcomes.len(),
        started.elapsed().as_secs_f64(),
        sum(|outcome| outcome.in_hand),
        sum(|outcome| outcome.begun),
        sum(|outcome| outcome.repeated),
        outcomes.iter().map(|outcome| outcome.repeated).max().unwrap_or_default(),
        if receiver == Receiver::None { sum(|outcome| outcome.second_sends) } else { 0 },
        sum(|outcome| outcome.census.lost.len()),
        sum(|outcome| outcome.census.doubled.len()),
        sum(|outcome| outcome.census.changed.len()),
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_relay_killed_at_any_point_loses_nothing_doubles_nothing_and_repeats_only_what_had_begun() {
    let _turn = report::turn().await;
    let started = Instant::now();
    let outcomes = sweep(Receiver::Enforced).await;
    show("Killed before a receiver that deduplicates", &outcomes, started, Receiver::Enforced);
    for outcome in &outcomes {
        outcome.census.assert_whole(&outcome.point.to_string());
        assert!(outcome.repeated <= outcome.begun, "{}", outcome.point);
        // What is on the wire, and what is answered and waits to be written.
        assert!(outcome.repeated <= 4 * CONCURRENCY, "{}: {} repeated", outcome.point, outcome.repeated);
    }
    assert!(outcomes.len() >= if report::full() { 60 } else { 12 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_relay_killed_at_any_point_sends_nothing_twice_to_a_receiver_that_does_not_deduplicate() {
    let _turn = report::turn().await;
    let started = Instant::now();
    let outcomes = sweep(Receiver::None).await;
    show("Killed before a receiver that does not deduplicate", &outcomes, started, Receiver::None);
    for outcome in &outcomes {
        outcome.census.assert_whole(&outcome.point.to_string());
        assert_eq!(outcome.second_sends, 0, "{}", outcome.point);
    }
}
