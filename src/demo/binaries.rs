//! Where PostgreSQL's programs are, and as whom the server may run.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Names the directory of PostgreSQL's programs.
const BIN_VARIABLE: &str = "OUTBOX_POSTGRES_BIN";
/// Where packages put each version: `/usr/lib/postgresql/17/bin` (Debian), `/usr/pgsql-17/bin` (Red Hat).
const PACKAGED: [(&str, &str); 2] = [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")];
/// Users that the server may run as when we are root, which it refuses.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// No programs were found.
#[derive(Debug, thiserror::Error)]
pub enum NoPrograms {
    /// The variable names a directory without them.
    #[error("{BIN_VARIABLE} is {0:?}, and that directory does not hold both initdb and postgres")]
    Named(PathBuf),
    /// They are in none of the usual places.
    #[error(
        "PostgreSQL's programs initdb and postgres are not in {BIN_VARIABLE}, pg_config --bindir, \
         /usr/lib/postgresql/*/bin or PATH: install PostgreSQL 14 or later (apt-get install postgresql), \
         or set {BIN_VARIABLE} to their directory"
    )]
    Nowhere,
}

/// Finds the directory that holds `initdb` and `postgres`.
///
/// # Errors
///
/// [`NoPrograms`], naming the mend.
pub(super) fn find() -> Result<PathBuf, NoPrograms> {
    if let Some(named) = std::env::var_os(BIN_VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return if complete(&named) { Ok(named) } else { Err(NoPrograms::Named(named)) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    pg_config()
        .into_iter()
        .chain(packaged())
        .chain(std::env::split_paths(&path))
        .find(|bin| complete(bin))
        .ok_or(NoPrograms::Nowhere)
}

fn complete(bin: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| bin.join(program).is_file())
}

fn pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// The directories of packages, the highest version first.
fn packaged() -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix) in PACKAGED {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some(version) = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|v| v.parse().ok())
            {
                found.push((version, entry.path().join("bin")));
            }
        }
    }
    found.sort();
    found.into_iter().rev().map(|(_, bin)| bin).collect()
}

/// User and group that the server runs as when we are root.
///
/// # Errors
///
/// If the system has none of the usual ones.
pub(super) fn unprivileged_user() -> io::Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    UNPRIVILEGED
        .iter()
        .find_map(|name| ids(&users, name))
        .ok_or_else(|| io::Error::other("PostgreSQL refuses root, and there is no user postgres or nobody: make one"))
}

fn ids(users: &str, name: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_by_their_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/bash\npostgres2:x:1:1::/:/bin/sh\npostgres:x:101:104::/var:/bin/bash\n";
        assert_eq!(ids(users, "postgres"), Some((101, 104)));
        assert_eq!(ids(users, "nobody"), None);
    }
}
