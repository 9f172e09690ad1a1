//! Directories that go with their owner.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rand::RngExt;

/// A new directory that only its user may read. It is removed with everything in it when it is dropped.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    kept: bool,
}

impl TemporaryDirectory {
    /// Makes a directory whose name begins with `prefix` under the system's place for such.
    ///
    /// # Errors
    ///
    /// If it cannot be made there.
    pub fn create(prefix: &str) -> io::Result<Self> {
        let unique: u64 = rand::rng().random();
        let path = std::env::temp_dir().join(format!("{prefix}-{}-{unique:016x}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, kept: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The user that it belongs to: the one we run as.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(self.path.metadata()?.uid())
    }

    /// Leaves it behind.
    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if !self.kept {
            // It may be gone; and where it cannot be removed there is nobody left to tell.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
