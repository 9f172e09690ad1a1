//! HTTP/1.1 between relay and receiver, as far as it takes to know where in a request or an answer a connection is.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use crate::trap::{Event, Trap};

/// A request whose head was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Which process sent it, counted from 1.
    pub run: usize,
    pub key: String,
    /// What `Outbox-Attempt` said.
    pub attempt: i32,
}

/// What all connections share.
#[derive(Clone)]
pub struct Wire {
    trap: Trap,
    run: Arc<AtomicUsize>,
    begun: Arc<Mutex<Vec<Begun>>>,
    open: watch::Sender<usize>,
}

impl Wire {
    pub fn new(trap: Trap) -> Self {
        Self { trap, run: Arc::new(AtomicUsize::new(1)), begun: Arc::default(), open: watch::Sender::new(0) }
    }

    /// Listens in front of a receiver, and says where.
    pub async fn listen(&self, receiver: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let wire = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let wire = wire.clone();
                wire.open.send_modify(|open| *open += 1);
                tokio::spawn(async move {
                    // An error is one side's end, which ends the other.
                    let _ = wire.connection(client, receiver).await;
                    wire.open.send_modify(|open| *open -= 1);
                });
            }
        });
        address
    }

    /// Waits until the connections of a dead process are read to their ends, and counts the next process's requests apart.
    pub async fn next_run(&self) {
        self.open.subscribe().wait_for(|open| *open == 0).await.unwrap();
        self.run.fetch_add(1, Ordering::SeqCst);
    }

    /// The requests that began, in their order.
    pub fn begun(&self) -> Vec<Begun> {
        self.begun.lock().unwrap().clone()
    }

    async fn connection(&self, client: TcpStream, receiver: SocketAddr) -> io::Result<()> {
        client.set_nodelay(true)?;
        if !self.trap.pass(Event::ReceiverAccepts).await {
            return Ok(());
        }
        let server = TcpStream::connect(receiver).await?;
        server.set_nodelay(true)?;
        let reset = AtomicBool::new(false);
        let asked = AtomicBool::new(false);
        let (from_client, mut to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let ended = tokio::select! {
            ended = self.forth(from_client, to_server, &asked) => ended,
            ended = self.back(from_server, &mut to_client, &asked, &reset) => ended,
        };
        // A reset by the receiver reaches the relay as a reset.
        if reset.load(Ordering::SeqCst) {
            to_client.as_ref().set_zero_linger()?;
        }
        ended
    }

    async fn forth(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: &AtomicBool) -> io::Result<()> {
        let run = self.run.load(Ordering::SeqCst);
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            let head = loop {
                if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                    break buffer.drain(..end + 4).collect::<Vec<u8>>();
                }
                read_more(&mut from, &mut buffer).await?;
            };
            let text = String::from_utf8_lossy(&head).into_owned();
            self.begun.lock().unwrap().push(Begun {
                run,
                key: header(&text, "idempotency-key").unwrap_or_default().to_owned(),
                attempt: header(&text, "outbox-attempt").and_then(|attempt| attempt.parse().ok()).unwrap_or_default(),
            });
            if !self.trap.pass(Event::HeadRead).await {
                return Ok(());
            }
            to.write_all(&head).await?;
            let length: usize = header(&text, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            while buffer.len() < length {
                read_more(&mut from, &mut buffer).await?;
            }
            let body: Vec<u8> = buffer.drain(..length).collect();
            to.write_all(&body[..length / 2]).await?;
            if !self.trap.pass(Event::HalfBody).await {
                return Ok(());
            }
            asked.store(true, Ordering::SeqCst);
            to.write_all(&body[length / 2..]).await?;
        }
    }

    /// The first read behind a request stands for its answer: but for large bodies it is the whole of it.
    async fn back(
        &self,
        mut from: OwnedReadHalf,
        to: &mut OwnedWriteHalf,
        asked: &AtomicBool,
        reset: &AtomicBool,
    ) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            if let Err(error) = read_more(&mut from, &mut buffer).await {
                if error.kind() == io::ErrorKind::ConnectionReset {
                    reset.store(true, Ordering::SeqCst);
                }
                return Err(error);
            }
            if !asked.swap(false, Ordering::SeqCst) {
                to.write_all(&buffer).await?;
                buffer.clear();
                continue;
            }
            if !self.trap.pass(Event::AnswerReady).await {
                return Ok(());
            }
            let half = buffer.len() / 2;
            to.write_all(&buffer[..half]).await?;
            if !self.trap.pass(Event::HalfAnswer).await {
                return Ok(());
            }
            to.write_all(&buffer[half..]).await?;
            if !self.trap.pass(Event::Answered).await {
                return Ok(());
            }
            buffer.clear();
        }
    }
}

/// Reads what is there, up to a whole answer of the sandbox.
async fn read_more(from: &mut OwnedReadHalf, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.reserve(1 << 18);
    match from.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .find(|(own, _)| own.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}
