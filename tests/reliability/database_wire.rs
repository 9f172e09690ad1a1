//! PostgreSQL's wire protocol between relay and server: every message passes here and is announced.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::trap::{Act, Event, Trap};

/// The codes of a start-up packet that ask for encryption; both are answered by a plain "no".
const ASKS_FOR_ENCRYPTION: [i32; 2] = [80_877_103, 80_877_104];

/// Listens in front of a server, and says where.
pub async fn listen(server: SocketAddr, trap: Trap) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(connection(client, server, trap.clone()));
        }
    });
    address
}

async fn connection(mut client: TcpStream, server: SocketAddr, trap: Trap) -> io::Result<()> {
    client.set_nodelay(true)?;
    let start = loop {
        let length = client.read_i32().await?;
        let mut rest = vec![0; usize::try_from(length).unwrap() - 4];
        client.read_exact(&mut rest).await?;
        if ASKS_FOR_ENCRYPTION.contains(&i32::from_be_bytes(rest[..4].try_into().unwrap())) {
            client.write_all(b"N").await?;
        } else {
            break [&length.to_be_bytes()[..], &rest].concat();
        }
    };
    if !trap.pass(Event::DatabaseConnects).await {
        return Ok(());
    }
    let mut server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    server.write_all(&start).await?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let act = Arc::new(Mutex::new(Act::Other));
    // Whichever side ends first ends the other.
    tokio::select! {
        ended = forth(from_client, to_server, &trap, &act) => ended,
        ended = back(from_server, to_client, &trap, &act) => ended,
    }
}

/// One message behind the start-up: its type and all of its bytes.
async fn message(from: &mut OwnedReadHalf) -> io::Result<(u8, Vec<u8>)> {
    let mut bytes = vec![0; 5];
    from.read_exact(&mut bytes).await?;
    let length = usize::try_from(i32::from_be_bytes(bytes[1..5].try_into().unwrap())).unwrap();
    bytes.resize(length + 1, 0);
    from.read_exact(&mut bytes[5..]).await?;
    Ok((bytes[0], bytes))
}

async fn forth(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, trap: &Trap, act: &Mutex<Act>) -> io::Result<()> {
    loop {
        let (kind, bytes) = message(&mut from).await?;
        let event = match kind {
            b'Q' if bytes[5..].starts_with(b"BEGIN") => {
                *act.lock().unwrap() = Act::Other;
                Some(Event::Begins)
            }
            b'Q' if bytes[5..].starts_with(b"COMMIT") => Some(Event::BeforeCommit(*act.lock().unwrap())),
            b'P' => {
                let text = String::from_utf8_lossy(&bytes);
                if text.contains("SKIP LOCKED") && text.contains("'in_flight'") {
                    *act.lock().unwrap() = Act::Claim;
                } else if text.contains("UPDATE") && text.contains("completed_at") {
                    *act.lock().unwrap() = Act::Settle;
                }
                None
            }
            b'E' => Some(Event::Executes),
            _ => None,
        };
        if let Some(event) = event
            && !trap.pass(event).await
        {
            return Ok(());
        }
        to.write_all(&bytes).await?;
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, trap: &Trap, act: &Mutex<Act>) -> io::Result<()> {
    loop {
        let (kind, bytes) = message(&mut from).await?;
        if kind == b'C' && bytes[5..].starts_with(b"COMMIT") {
            let event = Event::AfterCommit(*act.lock().unwrap());
            if !trap.pass(event).await {
                return Ok(());
            }
        }
        to.write_all(&bytes).await?;
    }
}
