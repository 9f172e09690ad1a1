//! What a step of a script is. No I/O and no state: a step says what is asked for, others do it.

use std::{fmt, time::Duration};

use http::{HeaderValue, StatusCode};

/// One thing that the sandbox does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Answer. A 2xx is an effect.
    Answer(Answer),
    /// Answer without an effect, and give the same answer to every later request of the key.
    Keep(Answer),
    /// Make the effect, then do the other step, which makes none.
    Done(Box<Step>),
    /// Work for a while, whether or not the client waits, then do the other step.
    Slow(Duration, Box<Step>),
    /// Wait until the gate of this name is opened, then do the other step.
    Gate(String, Box<Step>),
    /// Break the connection instead of an answer.
    Break(Breakage),
    /// Never answer.
    Hang,
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// `Retry-After` of a 4xx or 5xx, `Location` of a 2xx or 3xx.
    pub argument: Option<HeaderValue>,
    /// The body.
    pub body: Content,
}

/// The body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// `{"id":"eff-N"}` for an effect, `{"error":"..."}` otherwise.
    Usual,
    /// Nothing, with a JSON content type.
    Empty,
    /// This text.
    Text(Vec<u8>),
    /// JSON of about so many bytes.
    Big(u64),
    /// JSON that never ends.
    Drip,
}

/// How a connection breaks. The two with a 201 make the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// RST.
    Reset,
    /// FIN.
    Close,
    /// Bytes that are no HTTP, then FIN.
    Garbage,
    /// A 201 whose body is shorter than it says, then FIN.
    Cut,
    /// A whole 201, then FIN after this time, without `Connection: close`.
    Bye(Duration),
}

impl Answer {
    /// The usual answer of a status.
    pub const fn of(status: StatusCode) -> Self {
        Self { status, argument: None, body: Content::Usual }
    }

    /// `201 Created`, the answer where no other is asked for.
    pub const fn created() -> Self {
        Self::of(StatusCode::CREATED)
    }
}

impl Step {
    /// Whether doing this step makes an effect (unless the key has one already).
    pub fn makes_effect(&self) -> bool {
        match self {
            Self::Answer(answer) => answer.status.is_success(),
            Self::Done(_) | Self::Break(Breakage::Cut | Breakage::Bye(_)) => true,
            Self::Slow(_, then) | Self::Gate(_, then) => then.makes_effect(),
            Self::Keep(_) | Self::Break(_) | Self::Hang => false,
        }
    }
}

/// The steps of an endpoint, each with its number of repetitions; the last one stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    steps: Vec<(Step, u32)>,
}

impl Script {
    /// A script of one step for ever.
    pub fn always(step: Step) -> Self {
        Self { steps: vec![(step, 1)] }
    }

    /// A script of steps and how often each is taken.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Empty`] without any step.
    pub(super) fn new(steps: Vec<(Step, u32)>) -> Result<Self, ScriptError> {
        if steps.is_empty() { Err(ScriptError::Empty) } else { Ok(Self { steps }) }
    }

    /// The step of the request number `position` of a key, counted from 0.
    pub fn at(&self, position: u32) -> &Step {
        let mut before = 0_u32;
        let mut last = &self.steps[0].0;
        for (step, times) in &self.steps {
            last = step;
            before = before.saturating_add(*times);
            if position < before {
                break;
            }
        }
        last
    }
}

/// Why a script or an option cannot be read. Its text is the body of the 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// `/do/` without steps.
    #[error("a script needs a step: /do/201")]
    Empty,
    /// No step of this name.
    #[error("unknown step {step:?}: `outbox sandbox --help` lists the steps")]
    Unknown {
        /// The step's text.
        step: String,
    },
    /// A known step with an argument that it cannot take.
    #[error("step {step:?}: {wrong}")]
    Argument {
        /// The step's text.
        step: String,
        /// What is wrong with it, and what would be right.
        wrong: &'static str,
    },
    /// An option that cannot be read.
    #[error("option {option}: {wrong}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it.
        wrong: String,
    },
}

impl fmt::Display for Breakage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Close => "closed",
            Self::Garbage => "garbage",
            Self::Cut => "cut",
            Self::Bye(_) => "201",
        })
    }
}
