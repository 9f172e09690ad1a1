//! The pooler that most clusters put in front of PostgreSQL: Debian's own package of it.

use std::{
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Child, Command, Stdio},
    time::Instant,
};

use sqlx::PgPool;

use crate::support::{PATIENCE, World};

/// PgBouncer in transaction mode in front of a world's database.
pub struct Pooler {
    child: Child,
    pub url: String,
    _folder: tempfile::TempDir,
}

impl Pooler {
    /// Starts it with so many connections to the server, and waits until it answers.
    pub async fn start(world: &World, connections: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let behind = url::Url::parse(&world.url).unwrap();
        let (file, users) = (folder.path().join("pgbouncer.ini"), folder.path().join("users.txt"));
        std::fs::write(&users, format!("\"{}\" \"\"\n", behind.username())).unwrap();
        std::fs::write(
            &file,
            format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 200\nserver_login_retry = 1\n",
                behind.port().unwrap(),
                users.display()
            ),
        )
        .unwrap();
        let program =
            ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|path| std::path::Path::new(path).exists());
        let mut command = Command::new(program.expect("pgbouncer is needed: hack/deps pgbouncer"));
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It refuses to run as root.
        if std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0) {
            command.uid(65534).gid(65534);
        }
        let child = command.spawn().unwrap();
        let mut url = behind.clone();
        url.set_port(Some(port)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while PgPool::connect_lazy_with(
            outbox_operator::store::ConnectSettings { url: url.to_string(), ..world.connect_settings() }
                .options()
                .unwrap(),
        )
        .acquire()
        .await
        .is_err()
        {
            assert!(Instant::now() < deadline, "pgbouncer never answered");
        }
        Self { child, url: url.to_string(), _folder: folder }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
