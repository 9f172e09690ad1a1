//! The rules of the receiver, on plain data: which step a request takes, what is an effect, what is a repeat.
//!
//! Everything that grows has a cap. Counts are kept apart from records, so that they stay true when records go.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;

use super::{
    ask::Ask,
    entry::{Arrival, Body, Decision, Executed, Identity, KeyState, Open, effect_id},
    record::{Answered, Counts, Effect, KeyRecord, RequestRecord},
    step::Answer,
};

/// Request records kept; a record without its text takes about 500 bytes, hence 50 MB.
const MAX_REQUESTS: usize = 100_000;
/// Bytes of bodies, headers and paths kept over all request records: 64 MiB.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Effect records kept; one takes about 250 bytes, hence 250 MB.
const MAX_EFFECTS: usize = 1_000_000;
/// Keys kept. A forgotten key could be executed twice, so a new one past the cap is refused with 507 instead.
const MAX_KEYS: usize = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct State {
    counts: Counts,
    requests: VecDeque<RequestRecord>,
    kept_bytes: usize,
    effects: VecDeque<Effect>,
    keys: HashMap<Identity, KeyState>,
    open: HashMap<u64, Open>,
    /// These two go on over a reset, so that a request from before it cannot be taken for one from after it.
    last_request: u64,
    last_effect: u64,
}

impl State {
    pub fn counts(&self) -> Counts {
        Counts { open: self.open.len() as u64, ..self.counts.clone() }
    }

    pub fn requests(&self) -> impl DoubleEndedIterator<Item = &RequestRecord> {
        self.requests.iter()
    }

    pub fn effects(&self) -> impl DoubleEndedIterator<Item = &Effect> {
        self.effects.iter()
    }

    pub fn keys(&self, limit: usize) -> Vec<KeyRecord> {
        self.keys.iter().filter_map(|(identity, state)| state.record(identity)).take(limit).collect()
    }

    pub fn key(&self, key: &str) -> Option<KeyRecord> {
        let (identity, state) = self.keys.get_key_value(&Identity::Key(key.to_owned()))?;
        state.record(identity)
    }

    pub fn reset(&mut self) {
        *self = Self { last_request: self.last_request, last_effect: self.last_effect, ..Self::default() };
    }

    pub fn connected(&mut self) -> u64 {
        self.counts.connections += 1;
        self.counts.connections
    }

    /// Notes a request whose head is here, and gives its number.
    pub fn arrived(&mut self, arrival: Arrival) -> u64 {
        self.last_request += 1;
        let number = self.last_request;
        self.counts.requests += 1;
        let identity = match &arrival.key {
            Some(key) => Identity::Key(key.clone()),
            None => Identity::Path(arrival.bare_path),
        };
        let mut repeat = false;
        if self.keys.len() < MAX_KEYS || self.keys.contains_key(&identity) {
            let state = self.keys.entry(identity.clone()).or_default();
            repeat = state.requests > 0 && arrival.key.is_some();
            state.requests += 1;
            match &arrival.key {
                None => self.counts.keyless += 1,
                Some(_) if repeat => self.counts.repeats += 1,
                Some(_) => self.counts.keys += 1,
            }
        }
        self.open
            .insert(number, Open { identity, body_sha256: String::new(), working: false, worked: false, ended: false });
        let record = RequestRecord {
            number,
            connection: arrival.connection,
            at: arrival.at,
            method: arrival.method,
            path: arrival.path,
            key: arrival.key,
            headers: arrival.headers,
            body: None,
            body_bytes: 0,
            body_sha256: None,
            repeat,
            overlap: false,
            answered: Answered::Open,
            effect: None,
            replayed: false,
            ended_at: None,
        };
        self.kept_bytes += record.kept_bytes();
        self.requests.push_back(record);
        self.forget_oldest_requests();
        number
    }

    /// Takes the body of a request and says what is to be done with it.
    pub fn decide(&mut self, number: u64, ask: &Ask, body: Body) -> Decision {
        let Some(open) = self.open.get_mut(&number) else {
            // From before a reset: answered, but forgotten.
            return Decision::Do(ask.script.at(0).clone());
        };
        open.body_sha256.clone_from(&body.sha256);
        let keyed = matches!(open.identity, Identity::Key(_));
        let Some(state) = self.keys.get_mut(&open.identity) else {
            return Decision::Full;
        };
        let overlap = state.working > 0 && keyed;
        open.working = true;
        state.working += 1;
        if keyed {
            let changed = state.body_sha256.as_ref().is_some_and(|first| *first != body.sha256);
            state.changed_bodies += u64::from(changed);
            self.counts.changed_bodies += u64::from(changed);
            state.overlaps += u64::from(overlap);
            self.counts.overlaps += u64::from(overlap);
        }
        state.body_sha256.get_or_insert_with(|| body.sha256.clone());

        let stored = state.stored.clone().filter(|_| ask.dedup && keyed);
        let decision = match (stored, &ask.busy) {
            (Some((answer, effect)), _) => Decision::Replay(answer, effect),
            (None, Some(busy)) if overlap => Decision::Do(busy.clone()),
            (None, _) => {
                let step = ask.script.at(state.position).clone();
                state.position = state.position.saturating_add(1);
                Decision::Do(step)
            }
        };
        let replayed = matches!(decision, Decision::Replay(..));
        self.counts.replays += u64::from(replayed);
        let text_bytes = body.text.as_ref().map_or(0, String::len);
        if let Some(record) = self.record(number) {
            record.overlap = overlap;
            record.replayed = replayed;
            record.body = body.text;
            record.body_bytes = body.bytes;
            record.body_sha256 = Some(body.sha256);
            self.kept_bytes += text_bytes;
            self.forget_oldest_requests();
        }
        decision
    }

    /// Makes the effect of a request, unless its key has one.
    pub fn execute(&mut self, number: u64, ask: &Ask, answer: &Answer) -> Executed {
        let at = Timestamp::now();
        let open = self.open.get(&number).map(|open| (open.identity.clone(), open.body_sha256.clone()));
        let Some((identity, body_sha256)) = open else {
            return Executed { answer: answer.clone(), effect: None, replayed: false };
        };
        let keyed = matches!(identity, Identity::Key(_));
        let state = self.keys.entry(identity.clone()).or_default();
        if let Some((answer, effect)) = state.stored.clone().filter(|_| ask.dedup && keyed) {
            self.counts.replays += 1;
            if let Some(record) = self.record(number) {
                record.replayed = true;
            }
            return Executed { answer, effect, replayed: true };
        }
        self.last_effect += 1;
        let effect = self.last_effect;
        self.counts.effects += 1;
        self.counts.duplicate_effects += u64::from(keyed && state.effects > 0);
        state.effects += 1;
        state.stored.get_or_insert_with(|| (answer.clone(), Some(effect)));
        let key = match identity {
            Identity::Key(key) => Some(key),
            Identity::Path(_) => None,
        };
        self.effects.push_back(Effect { number: effect, id: effect_id(effect), key, request: number, at, body_sha256 });
        if self.effects.len() > MAX_EFFECTS {
            self.effects.pop_front();
            self.counts.dropped_effects += 1;
        }
        if let Some(record) = self.record(number) {
            record.effect = Some(effect);
        }
        Executed { answer: answer.clone(), effect: Some(effect), replayed: false }
    }

    /// Stores an answer for a request's key without an effect.
    pub fn keep(&mut self, number: u64, answer: &Answer) {
        if let Some(state) = self.open.get(&number).and_then(|open| self.keys.get_mut(&open.identity)) {
            state.stored.get_or_insert_with(|| (answer.clone(), None));
        }
    }

    /// The work on a request is over, whether or not its client heard of it.
    pub fn worked(&mut self, number: u64) {
        if let Some(open) = self.open.get_mut(&number) {
            open.worked = true;
            if open.working
                && let Some(state) = self.keys.get_mut(&open.identity)
            {
                state.working = state.working.saturating_sub(1);
            }
            open.working = false;
            self.close(number);
        }
    }

    /// A request was answered, broken off or abandoned. The first end counts.
    pub fn ended(&mut self, number: u64, answered: Answered) {
        let Some(open) = self.open.get_mut(&number).filter(|open| !open.ended) else { return };
        open.ended = true;
        self.close(number);
        if let Some(record) = self.record(number) {
            record.answered = answered;
            record.ended_at = Some(Timestamp::now());
        }
    }

    fn close(&mut self, number: u64) {
        if self.open.get(&number).is_some_and(|open| open.worked && open.ended) {
            self.open.remove(&number);
        }
    }

    fn record(&mut self, number: u64) -> Option<&mut RequestRecord> {
        // Numbers have no gaps, so the place follows from the first one.
        let first = self.requests.front()?.number;
        self.requests.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    fn forget_oldest_requests(&mut self) {
        while self.requests.len() > MAX_REQUESTS || self.kept_bytes > MAX_KEPT_BYTES {
            let Some(oldest) = self.requests.pop_front() else { return };
            self.kept_bytes -= oldest.kept_bytes();
            self.counts.dropped_requests += 1;
        }
    }
}
