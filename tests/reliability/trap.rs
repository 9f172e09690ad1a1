//! A point in a relay's work, told by events and not by time. The proxies in front of database and receiver announce what
//! passes; at the armed point they hold the message back until the test has done what it wants to do there.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::watch;

/// What a transaction of the relay is for, read off its statements. For labels only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Claim,
    Settle,
    Other,
}

/// Something that passes a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A connection to the database was accepted; its start-up message was not forwarded.
    DatabaseConnects,
    /// A `BEGIN` was not forwarded.
    Begins,
    /// A statement was not forwarded.
    Executes,
    /// A `COMMIT` was not forwarded: nothing is committed.
    BeforeCommit(Act),
    /// A `COMMIT` was done, and its reply not forwarded: all is committed, and the relay does not know.
    AfterCommit(Act),
    /// A connection to the receiver was accepted; not a byte was read.
    ReceiverAccepts,
    /// The head of a request was read, nothing forwarded: the receiver never hears of it.
    HeadRead,
    /// Half of the body was forwarded: the receiver sees a request that breaks off.
    HalfBody,
    /// The receiver has answered, nothing was forwarded: the effect is made, and the relay does not know.
    AnswerReady,
    /// Half of the answer was forwarded.
    HalfAnswer,
    /// The whole answer was forwarded.
    Answered,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let act = |act: &Act| match act {
            Act::Claim => "a claim",
            Act::Settle => "a settle",
            Act::Other => "something else",
        };
        match self {
            Self::DatabaseConnects => f.write_str("connecting to the database"),
            Self::Begins => f.write_str("before BEGIN"),
            Self::Executes => f.write_str("before a statement"),
            Self::BeforeCommit(of) => write!(f, "before COMMIT of {}", act(of)),
            Self::AfterCommit(of) => write!(f, "after COMMIT of {}", act(of)),
            Self::ReceiverAccepts => f.write_str("connected to the receiver"),
            Self::HeadRead => f.write_str("head of a request sent"),
            Self::HalfBody => f.write_str("half of a body sent"),
            Self::AnswerReady => f.write_str("answer not yet read"),
            Self::HalfAnswer => f.write_str("half of an answer read"),
            Self::Answered => f.write_str("answer read"),
        }
    }
}

/// The k-th time of an event, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub event: Event,
    pub number: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.event, self.number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Armed,
    Sprung,
    Over,
}

/// Waits for one point. Shared by the proxies of a world.
#[derive(Clone)]
pub struct Trap(Arc<Shared>);

struct Shared {
    point: Point,
    seen: Mutex<HashMap<Event, usize>>,
    state: watch::Sender<State>,
}

impl Trap {
    pub fn at(point: Point) -> Self {
        Self(Arc::new(Shared { point, seen: Mutex::default(), state: watch::Sender::new(State::Armed) }))
    }

    /// Announces an event. At the armed point it returns when the test is done there, and then says `false`: what was held
    /// back is to be dropped, with its connection.
    pub async fn pass(&self, event: Event) -> bool {
        let number = {
            let mut seen = self.0.seen.lock().unwrap();
            let number = seen.entry(event).or_default();
            *number += 1;
            *number
        };
        if self.0.point != (Point { event, number }) || *self.0.state.borrow() != State::Armed {
            return true;
        }
        self.0.state.send_replace(State::Sprung);
        let mut state = self.0.state.subscribe();
        state.wait_for(|state| *state == State::Over).await.unwrap();
        false
    }

    /// Waits until the point is reached.
    pub async fn sprung(&self, within: Duration) {
        let mut state = self.0.state.subscribe();
        let reached = tokio::time::timeout(within, state.wait_for(|state| *state == State::Sprung)).await;
        assert!(reached.is_ok(), "{} was never reached: {:?}", self.0.point, self.0.seen.lock().unwrap());
    }

    /// Lets everything pass from now on, but for what was held back.
    pub fn disarm(&self) {
        self.0.state.send_replace(State::Over);
    }
}
