//! The pre-dispatch check: whether a row may still be sent. Rows that are asked about at one time share a statement.

use std::collections::BTreeMap;

use tokio::sync::{mpsc, oneshot};

use super::Inner;
use crate::{
    domain::{
        authority::Authority,
        settings::{FunctionName, PreDispatch},
    },
    http::{CheckRequest, Sender},
    store::{self, Claimed, Db, StoreError},
};

/// Rows of one statement at most.
const MAX_BATCH: usize = 500;

/// A row that the function is asked about.
pub struct Question {
    function: FunctionName,
    id: i64,
    answer: oneshot::Sender<Authority>,
}

/// Asks whether a row may still be sent. A policy without a check allows every row.
pub async fn of(inner: &Inner, sender: &Sender, row: &Claimed) -> Authority {
    let authority = match &sender.policy().pre_dispatch {
        None => return Authority::Allowed,
        Some(PreDispatch::Http { url, timeout }) => {
            let question = CheckRequest {
                id: row.id,
                tenant: &row.tenant,
                operation: &row.operation,
                entity: &row.entity,
                key: &row.key,
            };
            sender.authorize(url, *timeout, &question).await
        }
        Some(PreDispatch::SqlFunction(function)) => {
            let (answer, wait) = oneshot::channel();
            let question = Question { function: function.clone(), id: row.id, answer };
            let asked = inner.questions.send(question).await.is_ok();
            let unasked = || Authority::Unasked { detail: "the relay is stopping".to_owned() };
            if asked { wait.await.unwrap_or_else(|_| unasked()) } else { unasked() }
        }
    };
    inner.relay.metrics.checked(authority.as_str());
    authority
}

/// Answers questions until none can follow.
pub async fn run(db: Db, mut incoming: mpsc::Receiver<Question>) {
    let mut waiting = Vec::with_capacity(MAX_BATCH);
    let mut sizes: BTreeMap<FunctionName, usize> = BTreeMap::new();
    while incoming.recv_many(&mut waiting, MAX_BATCH).await > 0 {
        let mut functions: BTreeMap<FunctionName, Vec<Question>> = BTreeMap::new();
        for question in waiting.drain(..) {
            functions.entry(question.function.clone()).or_default().push(question);
        }
        for (function, mut questions) in functions {
            let size = sizes.entry(function.clone()).or_insert(MAX_BATCH);
            while !questions.is_empty() {
                let rest = questions.split_off(questions.len().min(*size));
                *size = answer(&db, &function, questions, *size).await;
                questions = rest;
            }
        }
    }
}

/// Answers at most `size` questions by one statement, and says how many the next one may be about: half as many after one
/// that took too long.
async fn answer(db: &Db, function: &FunctionName, questions: Vec<Question>, size: usize) -> usize {
    let ids: Vec<i64> = questions.iter().map(|question| question.id).collect();
    match store::check(db, function, &ids).await {
        Ok(mut said) => {
            for question in questions {
                let authority = said.remove(&question.id).unwrap_or_else(|| Authority::Unclear {
                    detail: "the pre-dispatch function said nothing of the row".to_owned(),
                });
                let _ = question.answer.send(authority);
            }
            if ids.len() == size { (size * 2).min(MAX_BATCH) } else { size }
        }
        // One row's own trouble may have failed the statement for all: each is asked about alone.
        Err(error) if questions.len() > 1 && !error.is_transient() => {
            for question in questions {
                Box::pin(answer(db, function, vec![question], 1)).await;
            }
            size
        }
        Err(error) => {
            for question in questions {
                let _ = question.answer.send(failed(&error, ids.len()));
            }
            if error.is_out_of_time() { (ids.len() / 2).max(1) } else { size }
        }
    }
}

/// A function that takes too long for one row is at fault itself; one that was asked about many, or a database that is away,
/// is not. The server's text may quote the row, so that only its SQLSTATE is kept.
fn failed(error: &StoreError, rows: usize) -> Authority {
    match error.sqlstate() {
        Some(_) if error.is_out_of_time() && rows > 1 => Authority::Unasked {
            detail: format!(
                "the pre-dispatch function did not answer for {rows} rows in time; fewer are asked about next"
            ),
        },
        Some(_) if error.is_out_of_time() => {
            Authority::Unclear { detail: "the pre-dispatch function did not answer in time".to_owned() }
        }
        Some(code) if !error.is_transient() => {
            Authority::Unclear { detail: format!("the pre-dispatch function failed with SQLSTATE {code}") }
        }
        _ => Authority::Unasked { detail: "the database did not take the pre-dispatch question".to_owned() },
    }
}
