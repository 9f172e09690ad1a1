//! Doing the step of a request, apart from its connection: the work goes on when the client has gone.

use std::time::Duration;

use http::{Response, StatusCode};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{AnswerBody, render, text, usual_json},
    ask::Ask,
    entry::{Body, Decision},
    ledger::Ledger,
    record::Answered,
    step::{Answer, Breakage, Step},
};

/// What the connection has to do with the client.
#[derive(Debug)]
pub(super) enum Reply {
    /// Send this response.
    Http(Response<AnswerBody>),
    /// Break the connection.
    Break(Fault, Answered),
    /// Wait until the client goes.
    Hang,
}

/// How a connection ends below HTTP.
#[derive(Debug)]
pub(super) struct Fault {
    /// What is written first.
    pub bytes: Vec<u8>,
    /// How long it stays open after that.
    pub pause: Duration,
    /// Whether it ends with RST instead of FIN.
    pub reset: bool,
}

/// Says that the work on a request is over, however it ends.
#[derive(Debug)]
pub(super) struct Working {
    pub ledger: Ledger,
    pub number: u64,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.ledger.worked(self.number);
    }
}

/// Decides and does what a request asks for. The guard is handed on, since a request that hangs is still worked on.
pub(super) async fn perform(working: Working, ask: Ask, body: Body, end: CancellationToken) -> (Reply, Working) {
    let (ledger, number) = (&working.ledger, working.number);
    let reply = match ledger.decide(number, &ask, body) {
        Decision::Replay(answer, effect) => Reply::Http(render(&answer, effect, true, &ask.headers)),
        Decision::Full => Reply::Http(text(
            StatusCode::INSUFFICIENT_STORAGE,
            "text/plain",
            "the sandbox remembers a million keys and takes no more: POST /reset\n",
        )),
        Decision::Do(step) => tokio::select! {
            reply = steps(ledger, number, &ask, step) => reply,
            () = end.cancelled() => Reply::Hang,
        },
    };
    (reply, working)
}

async fn steps(ledger: &Ledger, number: u64, ask: &Ask, mut step: Step) -> Reply {
    loop {
        step = match step {
            Step::Slow(time, then) => {
                tokio::time::sleep(time).await;
                *then
            }
            Step::Gate(name, then) => {
                ledger.gate_opened(&name).await;
                *then
            }
            Step::Done(then) => {
                ledger.execute(number, ask, &Answer::created());
                *then
            }
            Step::Answer(answer) if answer.status.is_success() => {
                let done = ledger.execute(number, ask, &answer);
                return Reply::Http(render(&done.answer, done.effect, done.replayed, &ask.headers));
            }
            Step::Answer(answer) => return Reply::Http(render(&answer, None, false, &ask.headers)),
            Step::Keep(answer) => {
                ledger.keep(number, &answer);
                return Reply::Http(render(&answer, None, false, &ask.headers));
            }
            Step::Break(breakage) => return broken(ledger, number, ask, breakage),
            Step::Hang => return Reply::Hang,
        };
    }
}

fn broken(ledger: &Ledger, number: u64, ask: &Ask, breakage: Breakage) -> Reply {
    let none = Fault { bytes: Vec::new(), pause: Duration::ZERO, reset: false };
    match breakage {
        Breakage::Reset => Reply::Break(Fault { reset: true, ..none }, Answered::Reset),
        Breakage::Close => Reply::Break(none, Answered::Closed),
        Breakage::Garbage => {
            let bytes = b"\x00\xffthis is no HTTP\r\n\r\n".to_vec();
            Reply::Break(Fault { bytes, ..none }, Answered::Garbage)
        }
        Breakage::Cut => {
            let json = executed_json(ledger, number, ask);
            let bytes = created(&json, json.len() / 2);
            Reply::Break(Fault { bytes, ..none }, Answered::Cut)
        }
        Breakage::Bye(pause) => {
            let json = executed_json(ledger, number, ask);
            let bytes = created(&json, json.len());
            Reply::Break(Fault { bytes, pause, ..none }, Answered::Status(201))
        }
    }
}

fn executed_json(ledger: &Ledger, number: u64, ask: &Ask) -> String {
    usual_json(StatusCode::CREATED, ledger.execute(number, ask, &Answer::created()).effect)
}

/// A 201 by hand, of whose body only the first bytes are sent.
fn created(json: &str, sent: usize) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", json.len());
    [head.as_bytes(), json.as_bytes().get(..sent).unwrap_or_default()].concat()
}
